"""Removal of the files of marked checkpoints, deleted jobs, data sets and old tasks; then other upkeep.

SQL alone decides which files to remove. Files are removed before their row is updated, so that an
interrupted removal is repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy.orm import Session

from service.checkpoints import repository as checkpoints
from service.datasets import repository as datasets
from service.datasets.uploads import repository as uploads
from service.db.models import Checkpoint, Dataset, IngestRun, Run
from service.dispatcher.adoption import Adoption
from service.dispatcher.context import DispatcherContext, passed
from service.dispatcher.housekeeping import Housekeeping
from service.dispatcher.isolation import run_isolated
from service.dispatcher.retention import Retention
from service.dispatcher.submission_removal import SubmissionRemoval
from service.dispatcher.version_removal import VersionRemoval
from service.runs import repository as runs
from service.states import LIVE_ATTEMPT
from service.storage import repository as storage
from service.tasks.repository import Tasks, model_runs, preparations, previews, searches

logger = logging.getLogger(__name__)

_BATCH_SIZE = 20
# Bounds the duration of a transaction, during which other writers wait, and of a round.
_ROWS_AT_ONCE, _TRANSACTIONS = 5000, 20
# A failed removal must not block the others.
_RETRY_AFTER = timedelta(minutes=5)
# The setting `keep_previews_days` is the same for previews.
_KEEP_PREPARATIONS = timedelta(days=7)
_KEEP_SEARCHES = timedelta(days=1)


class Garbage:
    """Removes files that are no longer needed."""

    def __init__(self, context: DispatcherContext, adoption: Adoption) -> None:
        self._context, self._adoption = context, adoption
        self._retention, self._housekeeping = Retention(context), Housekeeping(context)
        self._submissions, self._versions = SubmissionRemoval(context), VersionRemoval(context)
        self._tried_at: dict[str, datetime] = {}

    def round(self) -> bool:
        """Remove a batch of files; return `False` if this dispatcher is not in charge."""
        if not self._context.in_charge:
            return False
        keep_previews = timedelta(days=self._context.settings.keep_previews_days)
        keep_times: tuple[tuple[Tasks[Any], timedelta | None], ...] = (
            (previews, keep_previews),
            (preparations, _KEEP_PREPARATIONS),
            (model_runs, None),  # as long as their checkpoints
            (searches, _KEEP_SEARCHES),
        )
        with self._context.database.read() as session:
            jobs, marked, deleted = self.jobs(session), self.marked(session), self.deleted(session)
            old = [(tasks, self.tasks(session, tasks, keep)) for tasks, keep in keep_times]
        for job_id in jobs:
            run_isolated(self.remove_job, job_id, "remove this job")
        for checkpoint in marked:
            run_isolated(self.remove, checkpoint, "remove this checkpoint")
        for dataset in deleted:
            run_isolated(self.remove_dataset, dataset, "remove this data set")
        for tasks, task_ids in old:
            for task_id in task_ids:
                run_isolated(partial(self.remove_task, tasks), task_id, "remove this task")
        self._adoption.sweep()
        self._retention.round()
        self._housekeeping.round()
        self._submissions.round()
        self._versions.round()
        return True

    def jobs(self, session: Session) -> Sequence[str]:
        """Return a batch of deleted jobs, without those whose removal failed recently."""
        return storage.deleted(session, _BATCH_SIZE, without=self._recently_failed())

    def marked(self, session: Session) -> Sequence[Checkpoint]:
        """Return a batch of marked checkpoints, without those whose removal failed recently."""
        return checkpoints.to_delete(session, _BATCH_SIZE, without=self._recently_failed())

    def deleted(self, session: Session) -> Sequence[Dataset]:
        """Return a batch of deleted data sets, without those whose removal failed recently."""
        return datasets.deleted(session, _BATCH_SIZE, without=self._recently_failed())

    def tasks(self, session: Session, tasks: Tasks[Any], keep: timedelta | None) -> Sequence[str]:
        """Return a batch of deleted and old tasks of a kind, without those whose removal failed recently.

        Args:
            keep: how long tasks are kept after their end; None: until they are deleted.
        """
        before = None if keep is None else self._context.clock() - keep
        return tasks.to_remove(session, before, _BATCH_SIZE, without=self._recently_failed())

    def remove_job(self, job_id: str) -> None:
        """Remove the files of a deleted job, then a bounded number of its rows, the job's row last."""
        self._tried_at[job_id] = self._context.clock()
        store = self._context.storage
        folder = store.job_uri(job_id)
        with self._context.database.read() as session:
            uris = storage.checkpoint_uris(session, job_id)
        try:
            # Checkpoints may have been written when the root had another spelling.
            for uri in (*(uri for uri in uris if not uri.startswith(f"{folder}/")), folder):
                store.remove(uri)
        except (OSError, ValueError) as error:
            logger.warning("The files of %s cannot be removed now: %s", job_id, error)
            return
        for _ in range(_TRANSACTIONS):
            with self._context.write() as session:
                removed = storage.remove_rows(session, job_id, _ROWS_AT_ONCE)
            if removed:
                logger.info("removed the deleted job %s", job_id)
                break
        del self._tried_at[job_id]

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
        if not self._has_ended(IngestRun, dataset.id):
            return
        self._tried_at[dataset.id] = self._context.clock()
        try:
            self._context.storage.remove(self._context.storage.dataset_uri(dataset.id))
        except OSError as error:
            logger.warning("The index of %s cannot be removed now: %s", dataset.id, error)
            return
        with self._context.write() as session:
            uploads.forget_chunks(session, dataset.id)
            datasets.mark_removed(session, dataset.id)
        del self._tried_at[dataset.id]

    def remove_task(self, tasks: Tasks[Any], task_id: str) -> None:
        """Stop the run of a task; after its end, remove the files of its runs, and the row."""
        if not self._has_ended(tasks.run, task_id):
            return
        self._tried_at[task_id] = self._context.clock()
        try:
            store = self._context.storage
            if tasks is previews:
                store.remove(store.preview_uri(task_id))
            elif tasks is model_runs:
                store.remove(store.model_run_uri(task_id))
        except OSError as error:
            logger.warning("The files of %s cannot be removed now: %s", task_id, error)
            return
        with self._context.write() as session:
            tasks.remove(session, task_id)
        del self._tried_at[task_id]

    def _has_ended(self, kind: type[Run], owner: str) -> bool:
        """Whether the processes of an owner's last run have ended; stop them otherwise."""
        with self._context.database.read() as session:
            run = runs.newest(session, kind, owner)
        if run is None or run.state not in LIVE_ATTEMPT:
            return True
        submission = self._context.executor.status(run.submission_id)
        if submission is None or submission.state.ended:
            return True
        self._context.executor.stop(run.submission_id)
        return False

    def _recently_failed(self) -> Collection[str]:
        now = self._context.clock()
        self._tried_at = {
            id: at for id, at in self._tried_at.items() if not passed(at, now, _RETRY_AFTER)
        }
        return self._tried_at.keys()
