"""Retention by age and size: remove files and rows of ended jobs in batches, as the settings say.

Previews are removed by age in `garbage`, and by size in this module. Files are removed before the rows that name
them, so that an interrupted removal is repeated.
"""

import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from service.api.problems import Problem
from service.artifacts.attempt_log import AttemptLog
from service.checkpoints import repository as checkpoints
from service.checkpoints import retention
from service.db.locks import lock_job
from service.dispatcher.context import DispatcherContext, passed
from service.dispatcher.isolation import Backoff, run_isolated
from service.storage import deletion, repository
from service.storage.clock import is_empty, removal_time
from service.storage.repository import GRACE, Old
from service.tasks.repository import Tasks, delete_oldest, model_runs, previews

logger = logging.getLogger(__name__)

_EVERY = timedelta(minutes=5)
_BATCH_SIZE = 20
# Bounds the duration of a transaction, during which other writers wait, and of a round.
_ROWS_AT_ONCE, _TRANSACTIONS = 5000, 20
# A failed removal must not block the others.
_RETRY_AFTER = timedelta(hours=1)
# The requester may be downloading a preview.
_KEEP_PREVIEWS = timedelta(hours=1)
# After this many failures, the store is probably unavailable; and a query takes a limited number of ids.
_MOST_FAILED = 1000

Remove = Callable[[str], object]


class Retention:
    """Removes the parts of ended jobs that the settings no longer keep."""

    def __init__(self, context: DispatcherContext) -> None:
        self._context = context
        self._swept_at: datetime | None = None
        self._waits = False
        """Whether the time may be wrong."""
        self._failures = Backoff(context, _RETRY_AFTER)

    def round(self) -> None:
        """Mark a batch, and remove what was marked a day ago; if nothing is left, wait some minutes.

        Retention by size removes at once.
        """
        now = self._context.clock()
        if not passed(self._swept_at, now, _EVERY):
            return
        settings = self._context.settings
        with self._context.database.read() as session:
            time = removal_time(session, now)
            is_new = time is None and is_empty(session)
        if time is None and not is_new and not self._waits:
            logger.warning("Nothing is removed for its age until the clock can be trusted")
        self._waits = time is None and not is_new
        rules: list[tuple[float | None, Old, Remove]] = [
            (settings.keep_jobs_days, repository.expired_jobs, self.delete_job),
            (settings.keep_checkpoints_days, repository.with_old_checkpoints, self.thin),
            (settings.keep_artifacts_days, repository.with_old_artifacts, self.remove_artifacts),
            (settings.keep_metrics_days, repository.with_old_metrics, self.remove_metrics),
            (settings.keep_logs_days, repository.with_old_logs, self.remove_logs),
        ]
        done = True
        for days, old, remove in rules:
            if days is not None and time is not None:
                done &= self._apply(old, time, timedelta(days=days), remove)
        if settings.max_artifact_bytes is not None and done:
            done = self.shrink(settings.max_artifact_bytes)
        if done:
            self._swept_at = now

    def _apply(self, old: Old, now: datetime, age: timedelta, remove: Remove) -> bool:
        """Apply a rule to a batch of jobs; return whether nothing is left to do for now."""
        failed, marked_before = self._failures.waiting(), now - GRACE
        if len(failed) >= _MOST_FAILED:
            return True
        with self._context.write() as session:
            old.unmark_future(session, now)
        with self._context.database.read() as session:
            new = old.unmarked(session, now - age, _BATCH_SIZE, failed)
            due = old.due(session, now - age, marked_before, _BATCH_SIZE, failed)
        if new:
            with self._context.write() as session:
                old.mark(session, new, now)

        def begin(job_id: str) -> bool:
            with self._context.write() as session:
                return old.begin(session, job_id)

        all_removed = self._remove(due, remove, begin)
        if all_removed:
            # Also of those that are not so old by a clock that was corrected.
            with self._context.write() as session:
                # A part of which only a bounded number of rows was removed stays marked.
                left = {*due, *self._failures.waiting()}
                old.unmark_done(session, marked_before, left)
        return all_removed and len(new) < _BATCH_SIZE

    def _remove(
        self, jobs: Sequence[str], remove: Remove, begin: Callable[[str], bool] = lambda _: True
    ) -> bool:
        """Remove a part of each of these jobs; return whether they were fewer than a batch.

        Args:
            begin: whether the part of a job may still be removed, which a user may just have taken back.
        """

        def remove_one(job_id: str) -> None:
            with self._failures.trying(job_id, f"The files of {job_id} cannot be removed now"):
                if begin(job_id):
                    remove(job_id)

        for job_id in jobs:
            run_isolated(remove_one, job_id, "apply the retention rules to this job")
        return len(jobs) < _BATCH_SIZE

    def delete_job(self, job_id: str) -> None:
        """Delete a failed or cancelled job."""
        with self._context.write() as session:
            job = lock_job(session, job_id)
            if job is None:
                return
            held = [checkpoint.id for checkpoint in checkpoints.lock_all(session, job_id)]
            if checkpoints.awaited(session, held):  # requested since the query
                return
            try:
                deletion.delete_job(session, job)
            except Problem as problem:  # pinned or cloned since the query
                logger.info("Job %s is kept: %s", job_id, problem.detail)
                return
        logger.info("retention deleted the %s job %s", job.status, job_id)

    def thin(self, job_id: str) -> None:
        """Remove the checkpoints of a job that retention may remove."""
        with self._context.write() as session:
            job = lock_job(session, job_id)
            if job is None or job.deleted_at is not None:
                return
            dropped = retention.drop_checkpoints(session, job)
            if dropped.complete:
                repository.set_removed(session, job_id, checkpoints_thinned=True)
        _log(job_id, dropped.checkpoints, "checkpoint", dropped.bytes)

    def remove_artifacts(self, job_id: str, needed: int | None = None) -> int:
        """Remove the checkpoints of a job that retention may remove, and then its artifacts.

        Args:
            needed: remove checkpoints only until this number of bytes is freed.

        Returns:
            Number of bytes that are freed, including the files of marked checkpoints.
        """
        with self._context.write() as session:
            job = lock_job(session, job_id)
            if job is None or job.deleted_at is not None:
                return 0
            dropped = retention.drop_checkpoints(session, job, needed)
        _log(job_id, dropped.checkpoints, "checkpoint", dropped.bytes)
        if not dropped.complete:
            return dropped.bytes
        with self._context.database.read() as session:
            artifacts = checkpoints.artifacts(session, job_id)
            numbers = repository.attempt_numbers(session, job_id)
        for number in numbers:
            self._context.storage.remove(self._context.storage.artifacts_uri(job_id, number))
        with self._context.write() as session:
            for artifact in artifacts:
                repository.remove_artifact(session, artifact)
            now = self._context.clock()
            repository.set_removed(session, job_id, artifacts_removed_at=now)
        size = sum(artifact.size for artifact in artifacts)
        _log(job_id, len(artifacts), "artifact", size)
        return dropped.bytes + size

    def remove_metrics(self, job_id: str) -> None:
        """Remove a bounded number of the metrics of a job."""
        for _ in range(_TRANSACTIONS):
            with self._context.write() as session:
                if repository.remove_metrics(session, job_id, _ROWS_AT_ONCE):
                    continue
                now = self._context.clock()
                repository.set_removed(session, job_id, metrics_removed_at=now)
            logger.info("retention removed the metrics of %s", job_id)
            return

    def remove_logs(self, job_id: str) -> None:
        with self._context.database.read() as session:
            numbers = repository.attempt_numbers(session, job_id)
        for number in numbers:
            AttemptLog(self._context.storage, job_id, number).remove()
        with self._context.write() as session:
            repository.set_removed(session, job_id, logs_removed_at=self._context.clock())
        logger.info("retention removed the logs of %s", job_id)

    def shrink(self, most: int) -> bool:
        """Remove a batch of files if the store holds more than `most` bytes.

        Previews are removed first, then embeddings and exports, then checkpoints and artifacts of ended jobs.

        Returns:
            Whether the store is small enough, or nothing more may be removed.
        """
        now = self._context.clock()
        with self._context.database.read() as session:
            excess = repository.stored_bytes(session) - most
        if excess <= 0:
            return True
        left = excess
        kinds: tuple[Tasks[Any], ...] = (previews, model_runs)
        for tasks in kinds:
            with self._context.write() as session:
                deleted = delete_oldest(
                    session, tasks, left, now - _KEEP_PREVIEWS, now, _BATCH_SIZE
                )
            freed = sum(task.size or 0 for task in deleted)
            left -= freed
            if deleted:
                message = "retention deleted %d %ss (%.1f MB)"
                logger.info(message, len(deleted), tasks.noun, freed / 1e6)
            if left <= 0 or len(deleted) == _BATCH_SIZE:
                return left <= 0

        def remove(job_id: str) -> None:
            nonlocal left
            if left > 0:
                left -= self.remove_artifacts(job_id, left)

        failed = self._failures.waiting()
        if len(failed) >= _MOST_FAILED:
            return True
        with self._context.database.read() as session:
            jobs = repository.with_old_artifacts.stored(session, now, _BATCH_SIZE, failed)
        return self._remove(jobs, remove) or left <= 0


def _log(job_id: str, count: int, noun: str, size: int) -> None:
    if count:
        plural = "" if count == 1 else "s"
        message = "retention removed %d %s%s of %s (%.1f MB)"
        logger.info(message, count, noun, plural, job_id, size / 1e6)
