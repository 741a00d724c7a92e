"""Requests of searches; each is checked against the search's newest run."""

import base64
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from service.artifacts.storage import Storage
from service.checkpoints import repository as checkpoints
from service.datasets.versions import repository as versions
from service.db.models import Search, SearchQuery
from service.db.session import Database
from service.protocol import (
    EmbeddingSettings,
    Queries,
    Query,
    QueryAnswers,
    SearchReport,
    SearchStart,
    StoredFolder,
)
from service.settings import Settings
from service.states import StaleAttempt, TaskState
from service.tasks.questions import repository as questions
from service.tasks.repository import model_runs, searches
from service.worker_api.fencing import newest_run
from service.worker_api.tasks import TaskSession, backbone

IDLE = timedelta(minutes=5)
"""How long a search waits for another question."""
_IDLE_IF_AWAITED = timedelta(seconds=10)
QUERIES_AT_ONCE = 8
IMAGE_BYTES_AT_ONCE = 16 << 20


class SearchSession(TaskSession[Search]):
    """Handler of the requests of a search, except requests for questions."""

    tasks = searches

    def start(self, storage: Storage, settings: Settings) -> SearchStart:
        """Mark the run as running and return its settings."""
        session = self.session
        embedding = model_runs.get_any(session, self._mark_running().embedding_id)
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
            checkpoint=backbone(checkpoint),
            facts=version.facts,
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
