"""Ask the search of an embedding for neighbors; the first question starts its process on the cluster.

The API has neither the vectors nor the network, and runs do not accept connections. Questions and answers are therefore
rows in the database, which the search polls.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy.orm import Session

from service import ids
from service.api.auth import Caller
from service.api.problems import Problem, field_problem, not_found
from service.checkpoints import service as checkpoints
from service.datasets import repository as datasets
from service.db.models import ModelRun, Search, SearchQuery
from service.db.session import Database
from service.protocol import QueryAnswer
from service.states import TaskState
from service.tasks.questions import repository as questions
from service.tasks.repository import model_runs, searches
from service.wire.model_runs import NeighborsView

# A question takes some 50 ms, which the others must wait.
_MOST_OPEN = 16
_RETRY_AFTER = {"Retry-After": "2"}


@dataclass(frozen=True)
class Asked:
    """A pending question.

    Attributes:
        search_id: the search that should answer it.
    """

    query_id: str
    search_id: str
    embedding_id: str
    dataset_id: str
    dataset_version: int


@dataclass(frozen=True)
class Question:
    """A question for the nearest images to an image of an embedding (`key`) or to an image file.

    Attributes:
        checkpoint: id of the checkpoint, or an alias together with `job`.
        dataset: data set of the embedding; None: any.
    """

    database: Database
    caller: Caller
    checkpoint: str
    job: str | None
    dataset: str | None
    k: int
    key: str | None = None

    def check(self) -> None:
        """Check what can be checked before an image file has arrived.

        Raises:
            Problem: see `ask`.
        """
        with self.database.read() as session:
            _check_room(session, self._embeddings(session)[0])

    def ask(self, image: bytes = b"") -> Asked:
        """Add the question, and a search for its embedding unless there is one.

        Raises:
            Problem: 404, no such checkpoint or data set; 409, it has no searchable embedding; 422, the image is
                missing; 429, too many questions wait.
        """
        with self.database.write() as session:
            embedding = self._locked_embedding(session)
            if not (self.key or image):
                expected = "the key of an image (GET), or an image file as the body (POST)"
                raise field_problem("image", "is missing or empty", "", expected)
            _check_room(session, embedding)
            query = SearchQuery(
                id=ids.new_id("qry"),
                embedding_id=embedding.id,
                key=self.key,
                image=image or None,
                k=self.k,
                created_at=datetime.now(UTC),
            )
            questions.add(session, query)
            search_id = self._search(session, embedding)
            assert embedding.dataset_id is not None, "it is of a data set"
            assert embedding.dataset_version is not None, "of a version"
            return Asked(
                query.id, search_id, embedding.id, embedding.dataset_id, embedding.dataset_version
            )

    def poll(self, asked: Asked) -> NeighborsView | None:
        """Return the answer, if there is one.

        Raises:
            Problem: 404, the embedding was deleted; 409, the search failed; 422, the image cannot be compared.
        """
        ended = False
        with self.database.read() as session:
            stored = questions.get_answer(session, asked.query_id)
            if stored is None:
                search = searches.get_any(session, asked.search_id)
                if search is None:
                    raise not_found("embedding", asked.embedding_id)
                if search.state == TaskState.SUCCEEDED:
                    ended = True
                elif search.state == TaskState.FAILED:
                    reason = (search.error or {}).get("message", "no reason")
                    raise Problem(409, "search-failed", f"The search has failed: {reason}")
        if stored is None:
            if ended:  # when the question was added
                with self.database.write() as session:
                    embedding = model_runs.lock(session, asked.embedding_id)
                    if embedding is not None:
                        self._search(session, embedding)
            return None
        answer = QueryAnswer.model_validate(stored)
        if answer.problem is not None:
            expected = "the key of an image of the embedding" if self.key else "an image file"
            raise field_problem("image", answer.problem, self.key or "", expected)
        return NeighborsView(
            embedding_id=asked.embedding_id,
            dataset_id=asked.dataset_id,
            dataset_version=asked.dataset_version,
            neighbors=answer.neighbors,
        )

    def forget(self, asked: Asked) -> None:
        with self.database.write() as session:
            questions.remove(session, asked.query_id)

    def _locked_embedding(self, session: Session) -> ModelRun:
        """Lock the newest embedding, so that only one of two concurrent questions adds the search."""
        for embedding in self._embeddings(session):
            locked = model_runs.lock(session, embedding.id)
            if locked is not None:
                return locked
        raise _no_embedding("no embedding", self.checkpoint, self.dataset)

    def _embeddings(self, session: Session) -> list[ModelRun]:
        """Return the searchable embeddings, newest first; at least one."""
        checkpoint = checkpoints.get(session, self.caller.tenant, self.checkpoint, self.job)
        dataset_id = None
        if self.dataset is not None:
            dataset = datasets.find(session, self.caller.tenant, self.dataset)
            if dataset is None:
                raise not_found("data set", self.dataset)
            dataset_id = dataset.id
        embeddings = model_runs.embeddings(session, checkpoint.id, dataset_id)
        usable = [run for run in embeddings if run.settings.get("features") != "patch"]
        if not usable:
            which = "only embeddings of patches" if embeddings else "no embedding"
            raise _no_embedding(which, checkpoint.id, self.dataset)
        return usable

    def _search(self, session: Session, embedding: ModelRun) -> str:
        now = datetime.now(UTC)
        search = searches.pending(session, embedding.id)
        if search is not None:
            # The end of a search takes the same lock, so it cannot end without reading this question.
            locked = searches.lock(session, search.id)
            if locked is not None and locked.state in (TaskState.QUEUED, TaskState.RUNNING):
                locked.asked_at = now
                return locked.id
        search = Search(
            id=ids.new_id("srch"),
            tenant=embedding.tenant,
            dataset_id=embedding.dataset_id,
            embedding_id=embedding.id,
            state=TaskState.QUEUED,
            token_id=self.caller.token_id,
            asked_at=now,
            created_at=now,
        )
        searches.add(session, search)
        return search.id


def _check_room(session: Session, embedding: ModelRun) -> None:
    if questions.count_open(session, embedding.id) >= _MOST_OPEN:
        detail = "Too many questions to this embedding wait for their answers; ask again"
        raise Problem(429, "too-many-questions", detail, headers=_RETRY_AFTER)


def _no_embedding(which: str, checkpoint_id: str, dataset: str | None) -> Problem:
    subject = f" of {dataset}" if dataset else ""
    detail = (
        f"The checkpoint has {which}{subject}. Make one first: dasl embed {checkpoint_id} --dataset "
        f"{dataset or 'DATASET'} (POST /v1/checkpoints/{checkpoint_id}/embeddings)"
    )
    return Problem(409, "no-embedding", detail)
