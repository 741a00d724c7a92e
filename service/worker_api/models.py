"""Reports of runs of finished models and of searches; each is checked against the newest run."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy.orm import Session

from dasl_core.vocabulary import Desired
from service.api.problems import validated
from service.artifacts.storage import Storage
from service.checkpoints import repository as checkpoints
from service.datasets.versions import repository as versions
from service.db.models import Checkpoint, ModelRun, Search, SearchQuery
from service.db.session import Database
from service.protocol import (
    EmbeddingSettings,
    IngestProgress,
    ModelRunReport,
    ModelRunStart,
    Queries,
    Query,
    QueryAnswers,
    SearchReport,
    SearchStart,
    StoredFolder,
    readable_fields,
)
from service.runs import repository as runs
from service.scheduling import repository as scheduling
from service.scheduling.nodes import Cluster, with_drains
from service.settings import Settings
from service.states import AttemptState, StaleAttempt, TaskState
from service.tasks.questions import repository as questions
from service.tasks.repository import model_runs, searches
from service.worker_api import datasets as worker_datasets
from service.worker_api.fencing import newest_run
from service.worker_api.ingest_estimate import record_progress
from service.worker_api.paths import check_below
from service.worker_api.tasks import TaskSession

# A checkpoint's files with its backbone and their description.
_OF_BACKBONE = ("backbone.safetensors", "metrics.json", "model.json")

IDLE = timedelta(minutes=5)
"""How long a search waits for another question."""
_IDLE_IF_AWAITED = timedelta(seconds=10)
QUERIES_AT_ONCE = 8
IMAGE_BYTES_AT_ONCE = 16 << 20


class ModelRunSession(TaskSession[ModelRun]):
    """Handler of the requests of a run of a finished model."""

    def __init__(self, session: Session, run_id: str, number: int, token: str) -> None:
        super().__init__(model_runs, session, run_id, number, token)

    def start(self, storage: Storage, settings: Settings) -> ModelRunStart:
        """Mark the run as running and return its settings."""
        self._check_not_over()
        row = self.task
        runs.move(self.session, self.tasks.run, row.id, self.run.number, AttemptState.RUNNING)
        dataset = None
        if row.dataset_id is not None:
            assert row.dataset_version is not None, "it is of a version of the data set"
            dataset = worker_datasets.worker_dataset(
                self.session, row.dataset_id, row.dataset_version
            )
        checkpoint = checkpoints.by_id(self.session, row.checkpoint_id)
        return ModelRunStart.model_validate(
            {
                "kind": row.kind,
                "settings": row.settings,
                "checkpoint": _backbone(checkpoint),
                "dataset": dataset,
                "artifacts_uri": storage.model_run_uri(row.id),
                "gpu_is_free": _gpu_is_free(self.session),
                "heartbeat_seconds": settings.heartbeat_seconds,
                **readable_fields(settings.readable_folders(row.tenant)),
            }
        )

    def heartbeat(self, progress: dict[str, object]) -> Desired:
        """Record a heartbeat and its progress; see `record_progress`."""
        self._check_not_over()
        reported = validated(progress, IngestProgress) if progress else None
        self.task.progress = record_progress(self.run, self.task.progress, reported)
        return "run"

    def finish(self, report: ModelRunReport, storage: Storage) -> None:
        """Record how the run ended. Idempotent."""
        if report.uri is not None:
            check_below(report.uri, storage.model_run_uri(self.task.id))
        files = [entry.model_dump() for entry in report.files]
        size = sum(entry.size for entry in report.files) if report.state == "succeeded" else None
        self._end(report, result=report.result, uri=report.uri, files=files, size=size)


class SearchSession(TaskSession[Search]):
    """Handler of the requests of a search, except requests for questions."""

    def __init__(self, session: Session, search_id: str, number: int, token: str) -> None:
        super().__init__(searches, session, search_id, number, token)

    def start(self, storage: Storage, settings: Settings) -> SearchStart:
        """Mark the run as running and return its settings."""
        self._check_not_over()
        session, row = self.session, self.task
        runs.move(session, self.tasks.run, row.id, self.run.number, AttemptState.RUNNING)
        embedding = model_runs.get_any(session, row.embedding_id)
        assert embedding is not None, "a search is deleted with its embedding"
        checkpoint = checkpoints.by_id(session, embedding.checkpoint_id)
        assert embedding.uri is not None, "it has succeeded"
        assert embedding.dataset_id is not None, "it is of a data set"
        assert embedding.dataset_version is not None, "of a version"
        version = versions.get(session, embedding.dataset_id, embedding.dataset_version)
        assert version is not None, "a search is deleted with its data set"
        return SearchStart(
            embedding=StoredFolder.model_validate({"uri": embedding.uri, "files": embedding.files}),
            settings=EmbeddingSettings.model_validate(embedding.settings),
            checkpoint=_backbone(checkpoint),
            facts=version.facts,
            heartbeat_seconds=settings.heartbeat_seconds,
        )

    def finish(self, report: SearchReport, storage: Storage) -> None:
        """Record how the run ended. Idempotent."""
        self._end(report)


@dataclass(frozen=True)
class SearchPoll:
    """A request of a search for its next questions, with the answers to earlier ones."""

    database: Database
    search_id: str
    number: int
    token: str

    def answer(self, report: QueryAnswers) -> None:
        """Store answers.

        Raises:
            StaleAttempt: see `SearchSession`.
        """
        now = datetime.now(UTC)
        with self.database.write() as session:
            handler = SearchSession(session, self.search_id, self.number, self.token)
            handler.heartbeat({})
            answers = [answer.model_dump() for answer in report.answers]
            questions.answer(session, handler.task.embedding_id, answers)
            questions.remove_older(session, now - questions.ABANDONED)

    def next(self) -> Queries | None:
        """Return the next questions, or that the search must end; None: no questions yet.

        Raises:
            StaleAttempt: the run has ended or was superseded.
        """
        with self.database.read() as session:
            search = searches.get_any(session, self.search_id)
            if search is None or search.state != TaskState.RUNNING:
                raise StaleAttempt(f"the run of {self.search_id} is over")
            newest_run(session, searches.run, self.search_id, self.number, self.token)
            rows = questions.unanswered(
                session, search.embedding_id, QUERIES_AT_ONCE, IMAGE_BYTES_AT_ONCE
            )
            if rows:
                return Queries(queries=[_query(row) for row in rows])
            idle = datetime.now(UTC) - search.asked_at
            limit = _IDLE_IF_AWAITED if searches.is_awaited(session) else IDLE
            return Queries(queries=[], stop=True) if idle > limit else None


def _query(row: SearchQuery) -> Query:
    image = None if row.image is None else base64.b64encode(row.image).decode("ascii")
    return Query(id=row.id, key=row.key, image=image, k=row.k)


def _backbone(checkpoint: Checkpoint) -> StoredFolder:
    files = [entry for entry in checkpoint.files if entry["name"] in _OF_BACKBONE]
    return StoredFolder.model_validate({"uri": checkpoint.uri, "files": files})


def _gpu_is_free(session: Session) -> bool:
    snapshot = scheduling.snapshot(session)
    if snapshot is None:
        return False
    cluster = with_drains(Cluster(scheduling.read_nodes(snapshot)), scheduling.drained(session))
    return any(node.total_gpus - node.used_gpus >= 1 and not node.drained for node in cluster.nodes)
