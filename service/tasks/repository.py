"""SQL of tasks. Only this module moves a task's state, by guarded UPDATEs."""

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, Select, bindparam, delete, func, select, update
from sqlalchemy.orm import Session

from service.db import rows
from service.db.models import (
    Checkpoint,
    Dataset,
    ModelRun,
    ModelRunRun,
    Preparation,
    PreparationRun,
    Preview,
    PreviewRun,
    Run,
    Search,
    SearchRun,
    Task,
)
from service.ids import Prefix
from service.outbox import repository as outbox
from service.runs import repository as runs
from service.runs.repository import WatchedRun
from service.runs.turns import take_turns
from service.states import LIVE_ATTEMPT, AttemptState, TaskState

PENDING = (TaskState.QUEUED, TaskState.RUNNING)
# States of checkpoints whose files are removed or about to be.
_GONE = ("deleting", "deleted")
# Number of the newest runs to compare.
_COMPARED = 100
T = TypeVar("T", bound=Task)


class Tasks(Generic[T]):
    """The tasks of one kind.

    Args:
        row: the table of the tasks.
        run: the kind of their runs.
        prefix: prefix of their ids.
        noun: their name in messages to users.
    """

    def __init__(self, row: type[T], run: type[Run], prefix: Prefix, noun: str) -> None:
        self.row, self.run, self.prefix, self.noun = row, run, prefix, noun

    def not_deleted(self) -> tuple[ColumnElement[bool], ...]:
        """Build the conditions that neither a task nor its subject was deleted."""
        deleted = select(Dataset.id).where(
            Dataset.id == self.row.dataset_id, Dataset.deleted_at.is_not(None)
        )
        return self.row.deleted_at.is_(None), ~deleted.exists()

    def add(self, session: Session, task: T) -> None:
        session.add(task)
        session.flush()

    def _select(self, *conditions: ColumnElement[bool]) -> Select[T]:
        """Select the tasks that meet conditions, without deleted ones."""
        return select(self.row).where(*conditions, *self.not_deleted())

    def owned(self, tenant: str) -> Select[T]:
        return self._select(self.row.tenant == tenant)

    def get_any(self, session: Session, task_id: str) -> T | None:
        """Return a task of any tenant."""
        return rows.one(session, self._select(), task_id)

    def newest(
        self, session: Session, dataset_id: str, after: str | None, limit: int
    ) -> Sequence[T]:
        """Return up to `limit` + 1 of a data set's tasks, newest first."""
        return rows.newest(session, self._select(self.row.dataset_id == dataset_id), after, limit)

    def awaited(self) -> Select[*tuple[str]]:
        """Select the tasks that are queued or running."""
        return self._select(self.row.state.in_(PENDING)).with_only_columns(self.row.id)

    def lock(self, session: Session, task_id: str) -> T | None:
        """Lock a task's row until the transaction ends, and refresh it; `None` if it is deleted."""
        return rows.one(session, self._select(), task_id, lock=True)

    def count_pending(self, session: Session, token_id: str) -> int:
        """Count a token's queued and running tasks."""
        pending = self.awaited().where(self.row.token_id == token_id).subquery()
        return session.execute(select(func.count()).select_from(pending)).scalar_one()

    def awaiting(self, session: Session, most: int, without: Collection[str]) -> Sequence[str]:
        """Return the ids of the tasks to run next: tenants take turns.

        Args:
            most: limit of running tasks (`take_turns`); deleted tasks count until they are stopped.
            without: ids of tasks that must wait.
        """
        running = Counter(session.scalars(self._tenants_running))
        if running.total() >= most:
            return []
        queued = session.execute(self._first_queued, {"most": most, "without": [*without]})
        waiting = [(tenant, task_id) for tenant, task_id in queued]
        tenants = {tenant for tenant, _ in waiting}
        last = (
            select(self.row.tenant, func.max(self.run.created_at))
            .join(self.run, self.run.owner == self.row.id)
            .where(self.row.tenant.in_(tenants))
            .group_by(self.row.tenant)
        )
        began = {row[0]: row[1] for row in session.execute(last)} if len(tenants) > 1 else {}
        return take_turns(waiting, running, began, most)

    def running(self, session: Session) -> list[WatchedRun]:
        """Return the runs that have not reported their end."""
        return [WatchedRun.from_row(row) for row in session.scalars(self._live_runs)]

    # Built once, because each round needs them and SQLAlchemy takes longer to build a statement than to run it.

    @cached_property
    def _tenants_running(self) -> Select[*tuple[str]]:
        return select(self.row.tenant).where(self.row.state == TaskState.RUNNING)

    @cached_property
    def _first_queued(self) -> Select[*tuple[str, str]]:
        """Select the first `most` tasks of each tenant."""
        position = func.row_number().over(partition_by=self.row.tenant, order_by=self.row.id)
        is_queued = self.row.state == TaskState.QUEUED
        others = self.row.id.not_in(bindparam("without", expanding=True))
        queued = (
            select(self.row.tenant, self.row.id, position.label("position"))
            .where(is_queued, others, *self.not_deleted())
            .subquery()
        )
        first = select(queued.c.tenant, queued.c.id).where(queued.c.position <= bindparam("most"))
        return first.order_by(queued.c.id)

    @cached_property
    def _live_runs(self) -> Select[*tuple[Run]]:
        return (
            select(self.run)
            .join(self.row, self.row.id == self.run.owner)
            .where(
                self.run.finished_at.is_(None),
                self.row.state == TaskState.RUNNING,
                *self.not_deleted(),
            )
            .order_by(self.run.owner)
        )

    def begin(self, session: Session, task_id: str, token_hash: str) -> Run | None:
        """Move queued -> running; return the new run, or `None` if too late."""
        is_queued = self.row.id == task_id, self.row.state == TaskState.QUEUED
        queued = update(self.row).where(*is_queued, *self.not_deleted())
        if not rows.changed(session, queued.values(state=TaskState.RUNNING)):
            return None
        return runs.add_next(session, self.run, task_id, token_hash)

    def end(
        self,
        session: Session,
        task_id: str,
        number: int,
        state: TaskState,
        *,
        run_state: AttemptState,
        **columns: Any,
    ) -> bool:
        """Move running -> succeeded or failed, or back to queued for another run.

        Args:
            number: the run that ended; the end of an earlier run is discarded.
            columns: other columns to change, such as `error`.
        """
        run = select(self.run).where(
            self.run.owner == task_id,
            self.run.number == number,
            self.run.state.in_(LIVE_ATTEMPT),
        )
        if state != TaskState.QUEUED:
            columns["finished_at"] = datetime.now(UTC)
        is_running = self.row.id == task_id, self.row.state == TaskState.RUNNING, run.exists()
        running = update(self.row).where(*is_running, *self.not_deleted())
        if not rows.changed(session, running.values(state=state, **columns)):
            return False
        error = columns.get("error")
        runs.move(session, self.run, task_id, number, run_state, error=error)
        runs.mark_finalized(session, self.run, task_id, number)
        if state != TaskState.QUEUED:
            task, at = session.get_one(self.row, task_id), columns["finished_at"]
            if (noun := self.announced(task)) is not None:
                outbox.add_task_event(session, task, noun, state, error, at)
        return True

    def announced(self, task: T) -> str | None:
        """Return the noun in the types of webhook messages about a task's end; None: no messages."""
        return self.noun

    def to_remove(
        self, session: Session, before: datetime | None, limit: int, without: Collection[str]
    ) -> Sequence[str]:
        """Return tasks that were deleted, or that ended before a time; None: ignore age."""
        deleted, old = self._removable
        values: dict[str, Any] = {"limit": limit, "without": [*without]}
        found = [*session.scalars(deleted, values)]
        if before is not None:
            found += session.scalars(old, values | {"before": before})
        return list(dict.fromkeys(found))[:limit]

    @cached_property
    def _removable(self) -> tuple[Select[*tuple[str]], Select[*tuple[str]]]:
        """Queries of the deleted tasks and of the old ones; as one, it would use neither's index."""
        others = self.row.id.not_in(bindparam("without", expanding=True))
        tasks = select(self.row.id).where(others).limit(bindparam("limit"))
        old = self.row.finished_at < bindparam("before")
        return (
            tasks.where(self.row.deleted_at.is_not(None)).order_by(self.row.deleted_at),
            tasks.where(old).order_by(self.row.finished_at),
        )

    def delete_of(self, session: Session, subject: ColumnElement[bool], now: datetime) -> None:
        """Mark the tasks on a deleted subject, which hides them already, so that `to_remove` returns them."""
        of_subject = update(self.row).where(subject, self.row.deleted_at.is_(None))
        session.execute(of_subject.values(deleted_at=now))

    def remove(self, session: Session, task_id: str) -> None:
        """Remove the row of a task whose files are removed, and end its run.

        The rows of its runs stay, without their errors, as for deleted jobs.
        """
        run = runs.newest(session, self.run, task_id)
        if run is not None:
            runs.move(session, self.run, task_id, run.number, AttemptState.CANCELLED)
            runs.mark_finalized(session, self.run, task_id, run.number)
        rows.changed(session, update(self.run).where(self.run.owner == task_id).values(error=None))
        rows.changed(session, delete(self.row).where(self.row.id == task_id))


class ModelRuns(Tasks[ModelRun]):
    """The runs of finished models, which are deleted with their checkpoints."""

    def __init__(self) -> None:
        super().__init__(ModelRun, ModelRunRun, "mrun", "model run")

    def not_deleted(self) -> tuple[ColumnElement[bool], ...]:
        kept = select(Checkpoint.id).where(
            Checkpoint.id == ModelRun.checkpoint_id, Checkpoint.state.not_in(_GONE)
        )
        return *super().not_deleted(), kept.exists()

    def announced(self, task: ModelRun) -> str | None:
        return task.kind

    def of_checkpoint(
        self, session: Session, checkpoint_id: str, kind: str, after: str | None, limit: int
    ) -> Sequence[ModelRun]:
        """Return up to `limit` + 1 of a checkpoint's runs of one kind, newest first."""
        query = self._select(ModelRun.checkpoint_id == checkpoint_id, ModelRun.kind == kind)
        return rows.newest(session, query, after, limit)

    def same(self, session: Session, wanted: ModelRun) -> ModelRun | None:
        """Return the newest equal run, unless it has failed."""
        query = self._select(
            ModelRun.checkpoint_id == wanted.checkpoint_id,
            ModelRun.kind == wanted.kind,
            ModelRun.dataset_id.is_not_distinct_from(wanted.dataset_id),
            ModelRun.dataset_version.is_not_distinct_from(wanted.dataset_version),
            ModelRun.state != TaskState.FAILED,
        )
        newest = rows.newest(session, query, None, _COMPARED)
        # Compare in Python, because the databases compare JSON in different ways.
        return next((row for row in newest if row.settings == wanted.settings), None)

    def embeddings(
        self, session: Session, checkpoint_id: str, dataset_id: str | None
    ) -> Sequence[ModelRun]:
        """Return a checkpoint's embeddings that succeeded, newest first; None: of all data sets."""
        query = self._select(
            ModelRun.checkpoint_id == checkpoint_id,
            ModelRun.kind == "embedding",
            ModelRun.state == TaskState.SUCCEEDED,
        )
        if dataset_id is not None:
            query = query.where(ModelRun.dataset_id == dataset_id)
        return rows.newest(session, query, None, _COMPARED)


class Searches(Tasks[Search]):
    """The searches among embeddings, with which they are deleted."""

    def __init__(self) -> None:
        super().__init__(Search, SearchRun, "srch", "search")

    def not_deleted(self) -> tuple[ColumnElement[bool], ...]:
        embedding = select(ModelRun.id).where(
            ModelRun.id == Search.embedding_id, *model_runs.not_deleted()
        )
        return *super().not_deleted(), embedding.exists()

    def announced(self, task: Search) -> str | None:
        return None  # a search starts and ends with its questions

    def pending(self, session: Session, embedding_id: str) -> Search | None:
        """Return an embedding's queued or running search."""
        query = self._select(Search.embedding_id == embedding_id, Search.state.in_(PENDING))
        return next(iter(rows.newest(session, query, None, 1)), None)

    def is_awaited(self, session: Session) -> bool:
        """Whether a search waits for another one to end."""
        query = self._select(Search.state == TaskState.QUEUED)
        return session.scalars(query.limit(1)).first() is not None


previews = Tasks(Preview, PreviewRun, "prev", "preview")
preparations = Tasks(Preparation, PreparationRun, "prep", "preparation")
model_runs = ModelRuns()
searches = Searches()


def same_preparation(session: Session, wanted: Preparation) -> Preparation | None:
    """Return the queued or running preparation of the same images with the same settings.

    Ended ones do not count, because unused images are removed from the cache.
    """
    settings = ("dataset_id", "dataset_version", "image_size", "channels", "image_cache")
    equal = (getattr(Preparation, name) == getattr(wanted, name) for name in settings)
    pending = Preparation.state.in_(PENDING)
    query = select(Preparation).where(*equal, pending, Preparation.deleted_at.is_(None))
    return session.scalars(query.order_by(Preparation.id.desc()).limit(1)).one_or_none()


def delete_oldest(
    session: Session,
    tasks: Tasks[Any],
    needed: int,
    before: datetime,
    now: datetime,
    limit: int,
) -> Sequence[Preview | ModelRun]:
    """Delete the tasks that ended first, until enough bytes are freed; return them.

    Args:
        tasks: tasks of a kind that has files.
        needed: number of bytes to free.
        before: delete only tasks that ended before this time.
        limit: most tasks to delete.
    """
    kind: type[Any] = tasks.row
    oldest = session.scalars(
        select(kind)
        .where(kind.size > 0, kind.finished_at < before, *tasks.not_deleted())
        .order_by(kind.finished_at, kind.id)
        .limit(limit)
        .with_for_update(of=kind, skip_locked=True)
    )
    deleted: list[Preview | ModelRun] = []
    for row in oldest:
        if needed <= 0:
            break
        row.deleted_at = now
        needed -= row.size or 0
        deleted.append(row)
    session.flush()
    return deleted
