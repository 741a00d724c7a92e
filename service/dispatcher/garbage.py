"""Removal of the files of marked checkpoints, deleted jobs, data sets and old tasks and versions; then other upkeep.

SQL alone decides which files to remove. Files are removed before their row is updated, so that an
interrupted removal is repeated.
"""

import logging
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from service.checkpoints import repository as checkpoints
from service.datasets import repository as datasets
from service.datasets.uploads import repository as uploads
from service.datasets.versions import repository as versions
from service.datasets.versions.service import removable_uri
from service.db.models import Checkpoint, Dataset, DatasetVersion, IngestRun, ModelRun, Run, Search
from service.dispatcher.adoption import Adoption
from service.dispatcher.context import DispatcherContext, passed
from service.dispatcher.housekeeping import Housekeeping
from service.dispatcher.isolation import Backoff, run_isolated
from service.dispatcher.retention import Retention
from service.dispatcher.submission_removal import SubmissionRemoval
from service.runs import repository as runs
from service.states import LIVE_ATTEMPT
from service.storage import repository as storage
from service.storage.clock import removal_time
from service.tasks.repository import Tasks, model_runs, preparations, previews, searches

logger = logging.getLogger(__name__)

_BATCH_SIZE = 20
# Bounds the duration of a transaction, during which other writers wait, and of a round.
_ROWS_AT_ONCE, _TRANSACTIONS = 5000, 20
# A failed removal must not block the others.
_RETRY_AFTER = timedelta(minutes=5)
# The query reads the jobs of data sets with old versions.
_VERSIONS_EVERY = timedelta(minutes=5)
# The setting `keep_previews_days` is the same for previews.
_KEEP_PREPARATIONS = timedelta(days=7)
_KEEP_SEARCHES = timedelta(days=1)


class Garbage:
    """Removes files that are no longer needed."""

    def __init__(self, context: DispatcherContext, adoption: Adoption) -> None:
        self._context, self._adoption = context, adoption
        self._retention, self._housekeeping = Retention(context), Housekeeping(context)
        self._submissions = SubmissionRemoval(context)
        self._failures = Backoff(context, _RETRY_AFTER)
        self._versions_at: datetime | None = None

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
        now, without = self._context.clock(), self._failures.waiting()
        with self._context.database.read() as session:
            jobs = storage.deleted(session, _BATCH_SIZE, without)
            marked = checkpoints.to_delete(session, _BATCH_SIZE, without=without)
            deleted = datasets.deleted(session, _BATCH_SIZE, without)
        for job_id in jobs:
            run_isolated(self.remove_job, job_id, "remove this job")
        for checkpoint in marked:
            run_isolated(self.remove, checkpoint, "remove this checkpoint")
        for dataset in deleted:
            run_isolated(self.remove_dataset, dataset, "remove this data set")
        old = []
        with self._context.database.read() as session:
            time = removal_time(session, now)
            for tasks, keep in keep_times:
                before = None if keep is None or time is None else time - keep
                old.append((tasks, tasks.to_remove(session, before, _BATCH_SIZE, without)))
        for tasks, task_ids in old:
            for task_id in task_ids:
                run_isolated(partial(self.remove_task, tasks), task_id, "remove this task")
        self._adoption.sweep()
        self._retention.round()
        self._housekeeping.round()
        self._submissions.round()
        self._remove_versions()
        return True

    def remove_job(self, job_id: str) -> None:
        """Remove the files of a deleted job, then a bounded number of its rows, the job's row last."""
        store = self._context.storage
        folder = store.job_uri(job_id)
        with self._context.write() as session:
            model_runs.delete_of(
                session, storage.reads_checkpoint_of(job_id), self._context.clock()
            )
            uris = storage.checkpoint_uris(session, job_id)
        with self._trying(job_id):
            # Checkpoints may have been written when the root had another spelling.
            for uri in (*(uri for uri in uris if not uri.startswith(f"{folder}/")), folder):
                store.remove(uri)
            for _ in range(_TRANSACTIONS):
                with self._context.write() as session:
                    removed = storage.remove_rows(session, job_id, _ROWS_AT_ONCE)
                if removed:
                    logger.info("removed the deleted job %s", job_id)
                    return

    def remove(self, checkpoint: Checkpoint) -> None:
        """Remove the files of a marked checkpoint, and mark what was made of it."""
        made = ModelRun.checkpoint_id == checkpoint.id
        with self._trying(checkpoint.id):
            with self._context.write() as session:
                model_runs.delete_of(session, made, self._context.clock())
            self._context.storage.remove(checkpoint.uri)
            with self._context.write() as session:
                checkpoints.mark_deleted(session, checkpoint.id)

    def remove_dataset(self, dataset: Dataset) -> None:
        """Stop the ingest run of a deleted data set; after its end, remove the files of its runs."""
        with self._context.write() as session:
            for tasks in (previews, preparations, model_runs):
                tasks.delete_of(session, tasks.row.dataset_id == dataset.id, self._context.clock())
        if not self._has_ended(IngestRun, dataset.id):
            return
        with self._trying(dataset.id):
            self._context.storage.remove(self._context.storage.dataset_uri(dataset.id))
            with self._context.write() as session:
                uploads.forget_chunks(session, dataset.id)
                datasets.mark_removed(session, dataset.id)

    def remove_task(self, tasks: Tasks[Any], task_id: str) -> None:
        """Stop the run of a task; after its end, remove the files of its runs, and the row."""
        if not self._has_ended(tasks.run, task_id):
            return
        store = self._context.storage
        with self._trying(task_id):
            if tasks is previews:
                store.remove(store.preview_uri(task_id))
            elif tasks is model_runs:
                store.remove(store.model_run_uri(task_id))
            with self._context.write() as session:
                if tasks is model_runs:
                    made = Search.embedding_id == task_id
                    searches.delete_of(session, made, self._context.clock())
                tasks.remove(session, task_id)

    def _remove_versions(self) -> None:
        """Remove the files of old versions of data sets that no job needs; after the last one, wait some minutes."""
        if not passed(self._versions_at, self._context.clock(), _VERSIONS_EVERY):
            return
        with self._context.database.read() as session:
            unneeded = versions.unneeded(session, _BATCH_SIZE, self._failures.waiting())
        for version in unneeded:
            run_isolated(self.remove_version, version, "remove this version of a data set")
        if len(unneeded) < _BATCH_SIZE:
            self._versions_at = self._context.clock()

    def remove_version(self, version: DatasetVersion) -> None:
        """Remove the files of a version, unless a new job needs it."""
        dataset_id, number = version.dataset_id, version.number
        with self._context.write() as session:
            if not versions.give_up(session, dataset_id, number):
                return
        problem = f"Version {number} of {dataset_id} cannot be removed now"
        with self._failures.trying(dataset_id, problem):
            self._context.storage.remove(removable_uri(version, self._context.storage))
            with self._context.write() as session:
                versions.mark_removed(session, dataset_id, number)
            logger.info("removed the files of version %s of %s", number, dataset_id)

    def _trying(self, item: str) -> AbstractContextManager[None]:
        return self._failures.trying(item, f"The files of {item} cannot be removed now")

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
