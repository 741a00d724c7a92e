"""Completion of uploads whose last byte is stored, and removal of abandoned ones.

A file is completed in short rounds, because joining or checking it may take minutes. A restarted dispatcher starts
over.
"""

import hashlib
import logging
import time
from collections.abc import Iterator
from datetime import datetime, timedelta

from service.artifacts import free_space
from service.datasets import repository as datasets
from service.datasets.uploads import repository
from service.datasets.uploads.files import Lost, is_full, upload_files
from service.db.models import Dataset
from service.dispatcher.context import DispatcherContext, passed
from service.dispatcher.isolation import Backoff, run_isolated
from service.storage.clock import removal_time

logger = logging.getLogger(__name__)

_BATCH_SIZE = 20
_ROUND_SECONDS = 1.0
_RETRY_AFTER = timedelta(minutes=1)
_SWEEP_EVERY = timedelta(minutes=5)


class Uploads:
    """Completes uploads one by one, and deletes abandoned ones."""

    def __init__(self, context: DispatcherContext) -> None:
        self._context = context
        self._running: dict[str, Iterator[None]] = {}
        """The completion of the current upload, by data set, if it takes more than a round."""
        self._failures = Backoff(context, _RETRY_AFTER)
        self._swept_at: datetime | None = None

    def round(self) -> bool:
        """Complete uploads for about a second; return `False` if this dispatcher is not in charge."""
        if not self._context.in_charge:
            self._running.clear()
            return False
        deadline = time.monotonic() + _ROUND_SECONDS
        without = self._failures.waiting()
        with self._context.database.read() as session:
            due = repository.complete(session, _BATCH_SIZE, without)
        self._running = {
            item.id: self._running[item.id] for item in due if item.id in self._running
        }
        for dataset in sorted(due, key=lambda each: each.id not in self._running):
            run_isolated(
                lambda item: self._continue(item, deadline), dataset, "complete this upload"
            )
            if time.monotonic() >= deadline:
                return True
        with self._context.database.read() as session:
            joined = repository.joined(session, _BATCH_SIZE, without)
        for dataset in joined:
            run_isolated(self.remove_chunks, dataset, "remove the chunks of this upload")
        self._delete_abandoned()
        return True

    def _continue(self, dataset: Dataset, deadline: float) -> None:
        with self._failures.trying(
            dataset.id, f"The upload of {dataset.id} cannot be completed now"
        ):
            steps = self._running.pop(dataset.id, None) or self.complete(dataset)
            try:
                for _ in steps:
                    if time.monotonic() >= deadline:
                        self._running[dataset.id] = steps
                        return
            except OSError as error:
                if is_full(error):
                    raise OSError(free_space.full(free_space.ARTIFACTS)) from error
                raise

    def complete(self, dataset: Dataset) -> Iterator[None]:
        """Complete the file of an upload step by step, check it, and queue its ingest.

        Raises:
            OSError: the store does not answer or is full.
        """
        assert dataset.upload_file is not None
        assert dataset.upload_size is not None
        files = upload_files(self._context.storage, dataset.id, dataset.upload_file["filename"])
        expected, state = dataset.upload_file["sha256"], hashlib.sha256()
        with self._context.database.read() as session:
            chunks = repository.chunks(session, dataset.id)
        try:
            on_block = state.update if expected is not None else None
            yield from files.complete(dataset.upload_size, chunks, on_block)
        except Lost:
            self._fail(dataset, "upload-lost", "The artifact store has lost a part of the upload")
            return
        if expected is not None and state.hexdigest() != expected:
            reason = f"The file has the SHA-256 {state.hexdigest()}, and {expected} was announced"
            self._fail(dataset, "upload-damaged", reason)
            return
        files.publish()
        with self._context.write() as session:
            finished = repository.finish(session, dataset.id)
            is_deleted = datasets.by_id(session, dataset.id).deleted_at is not None
        if is_deleted:  # its folder may have been removed before the file appeared
            self._remove(dataset)
        elif finished:
            logger.info("the upload of %s is complete (%d bytes)", dataset.id, dataset.upload_size)

    def remove_chunks(self, dataset: Dataset) -> None:
        """Remove the chunks of a file that is complete."""
        assert dataset.upload_file is not None
        files = upload_files(self._context.storage, dataset.id, dataset.upload_file["filename"])
        with self._failures.trying(dataset.id, f"The chunks of {dataset.id} cannot be removed now"):
            files.remove_chunks()
            with self._context.write() as session:
                repository.forget_chunks(session, dataset.id)

    def _fail(self, dataset: Dataset, kind: str, reason: str) -> None:
        message = f"{reason}. Delete the data set and upload the file again"
        with self._context.write() as session:
            failed = repository.fail(session, dataset.id, {"type": kind, "message": message})
        logger.warning("The upload of %s failed: %s", dataset.id, reason)
        if failed:
            self._remove(dataset)

    def _remove(self, dataset: Dataset) -> None:
        """Remove the folder of an upload and of its chunks. The chunks' rows are removed in a later round."""
        self._context.storage.remove(f"{self._context.storage.dataset_uri(dataset.id)}/upload")

    def _delete_abandoned(self) -> None:
        now = self._context.clock()
        if not passed(self._swept_at, now, _SWEEP_EVERY):
            return
        with self._context.database.read() as session:
            time = removal_time(session, now)
        if time is None:
            self._swept_at = now
            return
        with self._context.write() as session:
            before = time - timedelta(days=self._context.settings.keep_uploads_days)
            deleted = repository.delete_abandoned(session, before, time)
        for dataset_id in deleted:
            logger.info("deleted %s, whose upload was not continued", dataset_id)
        self._swept_at = now
