"""Reports of runs of tasks; each is checked against the task's newest run."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from sqlalchemy.orm import Session

from dasl_core.spec import versions
from dasl_core.vocabulary import Desired
from service.api.problems import validated
from service.artifacts.storage import Storage
from service.db.models import Preparation, Preview, Task
from service.protocol import (
    IngestProgress,
    ModelRunReport,
    PreparationReport,
    PreparationStart,
    PreviewReport,
    PreviewStart,
    SearchReport,
    readable_fields,
)
from service.runs import liveness
from service.runs import repository as runs
from service.settings import Settings
from service.states import AttemptState, StaleAttempt, TaskState
from service.tasks.repository import Tasks, preparations, previews
from service.worker_api import datasets as worker_datasets
from service.worker_api.fencing import newest_run
from service.worker_api.ingest_estimate import record_progress
from service.worker_api.paths import check_below

T = TypeVar("T", bound=Task)


class TaskSession(Generic[T]):
    """Handler of the requests of one run of a task. The row of the task is locked.

    Raises:
        StaleAttempt: the task was deleted, or the run was superseded or got another token.
    """

    def __init__(
        self, tasks: Tasks[T], session: Session, task_id: str, number: int, token: str
    ) -> None:
        self.tasks, self.session = tasks, session
        task = tasks.lock(session, task_id)
        if task is None:
            raise StaleAttempt(f"{task_id} was deleted")
        self.task = task
        self.run = newest_run(session, tasks.run, task_id, number, token)

    def heartbeat(self, progress: dict[str, object]) -> Desired:
        """Record a heartbeat; return "run": the API never requests that a task stops."""
        self._check_not_over()
        liveness.record_heartbeat(self.run, datetime.now(UTC))
        return "run"

    def _start(self, version: int, settings: Settings) -> dict[str, Any]:
        """Mark the run as running and return the fields of a `TaskStart`.

        Args:
            version: version of the data set.
        """
        self._check_not_over()
        task = self.task
        runs.move(self.session, self.tasks.run, task.id, self.run.number, AttemptState.RUNNING)
        return {
            "dataset": worker_datasets.worker_dataset(self.session, task.dataset_id, version),
            **readable_fields(settings.readable_folders(task.tenant)),
        }

    def _end(
        self,
        report: PreviewReport | PreparationReport | ModelRunReport | SearchReport,
        **columns: Any,
    ) -> None:
        """Record how the run ended. Idempotent."""
        if self.task.state == report.state:
            return
        succeeded = report.state == "succeeded"
        moved = self.tasks.end(
            self.session,
            self.task.id,
            self.run.number,
            TaskState(report.state),
            run_state=AttemptState.SUCCEEDED if succeeded else AttemptState.FAILED,
            error=report.error and report.error.model_dump(),
            **columns,
        )
        if not moved:
            raise StaleAttempt(f"the run of {self.task.id} is over")

    def _check_not_over(self) -> None:
        if self.task.state != TaskState.RUNNING:
            raise StaleAttempt(f"the run of {self.task.id} is over")


class PreviewSession(TaskSession[Preview]):
    """Handler of the requests of a run that draws a preview."""

    def __init__(self, session: Session, preview_id: str, number: int, token: str) -> None:
        super().__init__(previews, session, preview_id, number, token)

    def start(self, storage: Storage, settings: Settings) -> PreviewStart:
        """Mark the run as running and return its settings.

        Raises:
            UnreadableSpec: the worker could not read the spec.
        """
        preview = self.task
        spec = versions.load(preview.resolved, preview.spec_version)
        return PreviewStart(
            **self._start(preview.dataset_version, settings),
            spec=spec.model_dump(mode="json"),
            images=preview.images,
            dataset_version=preview.dataset_version,
            artifacts_uri=storage.preview_uri(preview.id),
        )

    def finish(self, report: PreviewReport, storage: Storage) -> None:
        """Record how the run ended. Idempotent."""
        if report.uri is not None:
            check_below(report.uri, storage.preview_uri(self.task.id))
        files = [entry.model_dump() for entry in report.files]
        succeeded = report.state == "succeeded"
        size = sum(entry.size for entry in report.files) if succeeded else None
        self._end(report, uri=report.uri, files=files, size=size)


class PreparationSession(TaskSession[Preparation]):
    """Handler of the requests of a run that decodes images."""

    def __init__(self, session: Session, preparation_id: str, number: int, token: str) -> None:
        super().__init__(preparations, session, preparation_id, number, token)

    def start(self, storage: Storage, settings: Settings) -> PreparationStart:
        """Mark the run as running and return its settings."""
        preparation = self.task
        return PreparationStart(
            **self._start(preparation.dataset_version, settings),
            image_size=preparation.image_size,
            channels=preparation.channels,
            image_cache=preparation.image_cache,
            heartbeat_seconds=settings.heartbeat_seconds,
        )

    def heartbeat(self, progress: dict[str, object]) -> Desired:
        """Record a heartbeat and its progress; see `record_progress`."""
        self._check_not_over()
        reported = validated(progress, IngestProgress) if progress else None
        self.task.progress = record_progress(self.run, self.task.progress, reported)
        return "run"

    def finish(self, report: PreparationReport, storage: Storage) -> None:
        """Record how the run ended. Idempotent."""
        self._end(report, result=report.result and report.result.model_dump())
