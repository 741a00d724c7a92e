"""Reports of runs of tasks; each is checked against the task's newest run."""

from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from sqlalchemy.orm import Session

from dasl_core.spec import versions
from dasl_core.vocabulary import Desired
from service.artifacts.storage import Storage
from service.checkpoints import repository as checkpoints
from service.db.models import Checkpoint, ModelRun, Preparation, Preview, Task
from service.protocol import (
    ModelRunReport,
    ModelRunStart,
    PreparationReport,
    PreparationStart,
    PreviewReport,
    PreviewStart,
    StoredFolder,
    TaskReport,
    readable_fields,
)
from service.runs import liveness
from service.runs import repository as runs
from service.scheduling import repository as scheduling
from service.scheduling.nodes import Cluster, with_drains
from service.settings import Settings
from service.states import AttemptState, StaleAttempt, TaskState
from service.tasks.repository import Tasks, model_runs, preparations, previews
from service.worker_api.datasets import worker_dataset
from service.worker_api.fencing import check_below, newest_run
from service.worker_api.ingest_estimate import record_progress

# A checkpoint's files with its backbone and their description.
_OF_BACKBONE = ("backbone.safetensors", "metrics.json", "model.json")
T = TypeVar("T", bound=Task)


class TaskSession(Generic[T]):
    """Handler of the requests of one run of a task. The row of the task is locked.

    Raises:
        StaleAttempt: the task was deleted, or the run was superseded or got another token.
    """

    tasks: Tasks[T]

    def __init__(self, session: Session, task_id: str, number: int, token: str) -> None:
        self.session = session
        task = self.tasks.lock(session, task_id)
        if task is None:
            raise StaleAttempt(f"{task_id} was deleted")
        self.task = task
        self.run = newest_run(session, self.tasks.run, task_id, number, token)

    def heartbeat(self, progress: dict[str, object]) -> Desired:
        """Record a heartbeat, with its progress if tasks of this kind have any.

        Returns:
            "run": the API never requests that a task stops.
        """
        self._check_not_over()
        if isinstance(self.task, Preparation | ModelRun):
            self.task.progress = record_progress(self.run, self.task.progress, progress)
        else:
            liveness.record_heartbeat(self.run, datetime.now(UTC))
        return "run"

    def _mark_running(self) -> T:
        """Mark the run as running and return its task."""
        self._check_not_over()
        runs.move(self.session, self.tasks.run, self.task.id, self.run.number, AttemptState.RUNNING)
        return self.task

    def _end(self, report: TaskReport, **columns: Any) -> None:
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
            error=report.error.model_dump() if report.error else None,
            **columns,
        )
        if not moved:
            raise StaleAttempt(f"the run of {self.task.id} is over")

    def _end_with_files(
        self, report: PreviewReport | ModelRunReport, folder: str, **columns: Any
    ) -> None:
        """Record how the run ended, and the files that it wrote below `folder`. Idempotent."""
        if report.uri is not None:
            check_below(report.uri, folder)
        files = [entry.model_dump() for entry in report.files]
        size = sum(entry.size for entry in report.files) if report.state == "succeeded" else None
        self._end(report, uri=report.uri, files=files, size=size, **columns)

    def _check_not_over(self) -> None:
        if self.task.state != TaskState.RUNNING:
            raise StaleAttempt(f"the run of {self.task.id} is over")


class PreviewSession(TaskSession[Preview]):
    """Handler of the requests of a run that draws a preview."""

    tasks = previews

    def start(self, storage: Storage, settings: Settings) -> PreviewStart:
        """Mark the run as running and return its settings.

        Raises:
            UnreadableSpec: the worker could not read the spec.
        """
        preview = self._mark_running()
        spec = versions.load(preview.resolved, preview.spec_version)
        return PreviewStart(
            dataset=worker_dataset(self.session, preview.dataset_id, preview.dataset_version),
            spec=spec.model_dump(mode="json"),
            images=preview.images,
            dataset_version=preview.dataset_version,
            artifacts_uri=storage.preview_uri(preview.id),
            **readable_fields(settings.readable_folders(preview.tenant)),
        )

    def finish(self, report: PreviewReport, storage: Storage) -> None:
        """Record how the run ended. Idempotent."""
        self._end_with_files(report, storage.preview_uri(self.task.id))


class PreparationSession(TaskSession[Preparation]):
    """Handler of the requests of a run that decodes images."""

    tasks = preparations

    def start(self, storage: Storage, settings: Settings) -> PreparationStart:
        """Mark the run as running and return its settings."""
        task = self._mark_running()
        return PreparationStart(
            dataset=worker_dataset(self.session, task.dataset_id, task.dataset_version),
            image_size=task.image_size,
            channels=task.channels,
            image_cache=task.image_cache,
            heartbeat_seconds=settings.heartbeat_seconds,
            **readable_fields(settings.readable_folders(task.tenant)),
        )

    def finish(self, report: PreparationReport, storage: Storage) -> None:
        """Record how the run ended. Idempotent."""
        self._end(report, result=report.result and report.result.model_dump())


class ModelRunSession(TaskSession[ModelRun]):
    """Handler of the requests of a run of a finished model."""

    tasks = model_runs

    def start(self, storage: Storage, settings: Settings) -> ModelRunStart:
        """Mark the run as running and return its settings."""
        row, dataset = self._mark_running(), None
        if row.dataset_id is not None:
            assert row.dataset_version is not None, "it is of a version of the data set"
            dataset = worker_dataset(self.session, row.dataset_id, row.dataset_version)
        checkpoint = checkpoints.by_id(self.session, row.checkpoint_id)
        return ModelRunStart.model_validate(
            {
                "kind": row.kind,
                "settings": row.settings,
                "checkpoint": backbone(checkpoint),
                "dataset": dataset,
                "artifacts_uri": storage.model_run_uri(row.id),
                "gpu_is_free": _gpu_is_free(self.session),
                "heartbeat_seconds": settings.heartbeat_seconds,
                **readable_fields(settings.readable_folders(row.tenant)),
            }
        )

    def finish(self, report: ModelRunReport, storage: Storage) -> None:
        """Record how the run ended. Idempotent."""
        folder = storage.model_run_uri(self.task.id)
        self._end_with_files(report, folder, result=report.result)


def backbone(checkpoint: Checkpoint) -> StoredFolder:
    """Return the files of a checkpoint that a run of its backbone needs."""
    files = [entry for entry in checkpoint.files if entry["name"] in _OF_BACKBONE]
    return StoredFolder.model_validate({"uri": checkpoint.uri, "files": files})


def _gpu_is_free(session: Session) -> bool:
    snapshot = scheduling.snapshot(session)
    if snapshot is None:
        return False
    cluster = with_drains(Cluster(scheduling.read_nodes(snapshot)), scheduling.drained(session))
    return any(node.total_gpus - node.used_gpus >= 1 and not node.drained for node in cluster.nodes)
