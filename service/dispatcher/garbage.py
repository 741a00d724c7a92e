"""Removal of unneeded files: of marked checkpoints, deleted data sets, and unregistered checkpoints.

SQL alone decides which files to remove. Files are removed before their row is updated, so that an
interrupted removal is repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from service.checkpoints import repository as checkpoints
from service.datasets import repository as datasets
from service.db.models import Checkpoint, Dataset, IngestRun
from service.dispatcher.context import DispatcherContext, passed
from service.dispatcher.isolation import run_isolated
from service.runs import repository as runs
from service.scheduling.repository import AttemptView
from service.states import LIVE_ATTEMPT

logger = logging.getLogger(__name__)

_BATCH_SIZE = 20
# A failed removal must not block the others.
_RETRY_AFTER = timedelta(minutes=5)


class Garbage:
    """Removes files that are not needed any more."""

    def __init__(self, context: DispatcherContext) -> None:
        self._context = context
        self._tried_at: dict[str, datetime] = {}

    def round(self) -> bool:
        """Remove a batch of marked files; return `False` if this dispatcher is not in charge."""
        if not self._context.in_charge:
            return False
        with self._context.database.read() as session:
            marked, deleted = self.marked(session), self.deleted(session)
        for checkpoint in marked:
            run_isolated(self.remove, checkpoint)
        for dataset in deleted:
            run_isolated(self.remove_dataset, dataset)
        return True

    def marked(self, session: Session) -> Sequence[Checkpoint]:
        """Return a batch of marked checkpoints, without those whose removal failed recently."""
        return checkpoints.to_delete(session, _BATCH_SIZE, without=self._recently_failed())

    def deleted(self, session: Session) -> Sequence[Dataset]:
        """Return a batch of deleted data sets, without those whose removal failed recently."""
        return datasets.deleted(session, _BATCH_SIZE, without=self._recently_failed())

    def remove(self, checkpoint: Checkpoint) -> None:
        """Remove the files of a marked checkpoint."""
        self._tried_at[checkpoint.id] = self._context.clock()
        try:
            self._context.storage.remove(checkpoint.uri)
        except (OSError, ValueError) as error:
            logger.warning("The files of %s cannot be removed now: %s", checkpoint.id, error)
            return
        with self._context.write() as session:
            checkpoints.mark_deleted(session, checkpoint.id)
        del self._tried_at[checkpoint.id]

    def remove_dataset(self, dataset: Dataset) -> None:
        """Stop the ingest run of a deleted data set; after its end, remove the files of its runs."""
        with self._context.database.read() as session:
            run = runs.newest(session, IngestRun, dataset.id)
        if run is not None and run.state in LIVE_ATTEMPT:
            submission = self._context.executor.status(run.submission_id)
            if submission is not None and not submission.state.ended:
                self._context.executor.stop(run.submission_id)
                return
        self._tried_at[dataset.id] = self._context.clock()
        try:
            self._context.storage.remove(self._context.storage.dataset_uri(dataset.id))
        except OSError as error:
            logger.warning("The index of %s cannot be removed now: %s", dataset.id, error)
            return
        with self._context.write() as session:
            datasets.mark_removed(session, dataset.id)
        del self._tried_at[dataset.id]

    def _recently_failed(self) -> Collection[str]:
        now = self._context.clock()
        self._tried_at = {
            id: at for id, at in self._tried_at.items() if not passed(at, now, _RETRY_AFTER)
        }
        return self._tried_at.keys()

    def sweep_attempt(self, attempt: AttemptView) -> None:
        """Remove checkpoint folders that an ended attempt wrote but never registered.

        An attempt leaves such folders if it was killed between the two. Its processes must be gone.
        """
        assert attempt.finished_at is not None
        storage = self._context.storage
        with self._context.database.read() as session:
            uris = checkpoints.uris_of_attempt(session, attempt.job_id, attempt.number)
        # Compare paths below the attempt's folder: the API may write the root differently.
        own = f"/jobs/{attempt.job_id}/attempts/{attempt.number}/"
        if not all(own in uri for uri in uris):
            logger.warning(
                "Checkpoints of %s are in another store: none is removed", attempt.submission_id
            )
            return
        registered = [uri.partition(own)[2] + "/" for uri in uris]
        try:
            for uri in storage.folders(storage.checkpoints_uri(attempt.job_id, attempt.number)):
                folder = uri.partition(own)[2] + "/"
                if not any(path.startswith(folder) for path in registered):
                    logger.info("%s was not registered and is removed", uri)
                    storage.remove(uri)
        except Exception as error:  # noqa: BLE001
            # Stores raise arbitrary exceptions, and an ended attempt must not hold its resources for that.
            logger.warning(
                "Unregistered checkpoints of %s cannot be removed: %s", attempt.submission_id, error
            )
