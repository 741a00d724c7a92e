"""SQL for runs of all kinds. The caller commits."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, func, select, tuple_, update
from sqlalchemy.orm import Session

from service import submission_ids
from service.db.models import Metric, Run
from service.db.rows import changed
from service.states import LIVE_ATTEMPT, AttemptState

R = TypeVar("R", bound=Run)

Position = tuple[datetime, str, int]
"""Position of a run in the order of ends: its end, owner and number."""


@dataclass(frozen=True)
class RunView:
    """A snapshot of a run of any kind."""

    owner: str
    number: int
    submission_id: str
    state: AttemptState

    @classmethod
    def from_row(cls, row: Run) -> RunView:
        """Build the view of a row."""
        return RunView(row.owner, row.number, row.submission_id, AttemptState(row.state))


@dataclass(frozen=True)
class WatchedRun(RunView):
    """A live run that reads images."""

    standstill: timedelta
    """How long it had made no progress at its last report."""

    @classmethod
    def from_row(cls, row: Run) -> WatchedRun:
        """Build the view of a row."""
        standstill = timedelta()
        # Previews report no progress.
        if row.progress_reported_at is not None and row.progressed_at is not None:
            standstill = row.progress_reported_at - row.progressed_at
        return cls(**vars(RunView.from_row(row)), standstill=standstill)


def add(
    session: Session,
    kind: type[R],
    owner: str,
    number: int,
    token_hash: str,
    *,
    resume_checkpoint_id: str | None = None,
    workers: int | None = None,
) -> R:
    """Add an owner's next run, with its submission id, before the executor knows of it."""
    run = kind(
        owner=owner,
        number=number,
        submission_id=submission_ids.new_submission_id(owner, number),
        state=AttemptState.CREATED,
        token_hash=token_hash,
        created_at=datetime.now(UTC),
        resume_checkpoint_id=resume_checkpoint_id,
        workers=workers,
    )
    session.add(run)
    session.flush()
    return run


def add_next(session: Session, kind: type[R], owner: str, token_hash: str) -> R:
    """Add the run after an owner's newest one."""
    before = newest(session, kind, owner)
    return add(session, kind, owner, 1 if before is None else before.number + 1, token_hash)


def by_submission_id(session: Session, submission_id: str) -> Run | None:
    """Return the run with this submission id, which may be any text, unless its kind is unknown."""
    if not submission_ids.is_submission_id(submission_id):
        return None
    # A newer version that runs during an upgrade may have added kinds.
    has_known_kind = Run.kind.in_(list(Run.__mapper__.polymorphic_map))
    query = select(Run).where(Run.submission_id == submission_id, has_known_kind)
    return session.scalars(query).one_or_none()


def newest(session: Session, kind: type[R], owner: str) -> R | None:
    """Return the newest run of an owner, refreshed from the database."""
    query = select(kind).where(kind.owner == owner).order_by(kind.number.desc()).limit(1)
    return session.scalars(query.execution_options(populate_existing=True)).one_or_none()


def move(
    session: Session,
    kind: type[Run],
    owner: str,
    number: int,
    to: AttemptState,
    *,
    sources: Collection[AttemptState] = LIVE_ATTEMPT,
    error: dict[str, Any] | None = None,
) -> bool:
    """Move a run to another state; return `False` if it is in none of the `sources`."""
    now = datetime.now(UTC)
    columns: dict[str, Any] = {"state": to, "error": error, "error_type": error_type(error)}
    if to not in LIVE_ATTEMPT:
        columns["finished_at"] = now
    if to == AttemptState.RUNNING:
        columns["heartbeat_at"] = columns["progressed_at"] = now
    run = kind.owner == owner, kind.number == number, kind.state.in_(sources)
    return changed(session, update(kind).where(*run).values(**columns)) > 0


def error_type(error: dict[str, Any] | None) -> str | None:
    """Return the type of an error, for the column that metrics group by."""
    type = (error or {}).get("type")
    return None if type is None else str(type)[:200]


def mark_submitted(session: Session, owner: str, number: int) -> bool:
    """Move a run from created to submitted; return `False` if it is in another state."""
    return move(session, Run, owner, number, AttemptState.SUBMITTED, sources={AttemptState.CREATED})


def finalized(
    session: Session, *, after: Position, before: datetime, limit: int
) -> list[tuple[Position, str]]:
    """Return the positions and submission ids of finalized runs of all kinds, in the order of their ends.

    Args:
        after: return only runs after this position.
        before: return only runs that ended before this time.
        limit: most runs to return.
    """
    position = (Run.finished_at, Run.owner, Run.number)
    ended = (Run.settled, tuple_(*position) > after, Run.finished_at < before)
    query = select(*position, Run.submission_id).where(*ended).order_by(*position).limit(limit)
    return [
        ((at, owner, number), submission_id)
        for at, owner, number, submission_id in session.execute(query)
        if at is not None  # implied by `before`
    ]


def replace_token(session: Session, owner: str, number: int, token_hash: str) -> bool:
    """Replace the token of a live run; return `False` if the run has ended."""
    live = Run.owner == owner, Run.number == number, Run.state.in_(LIVE_ATTEMPT)
    return changed(session, update(Run).where(*live).values(token_hash=token_hash)) > 0


def last_step(session: Session, job_id: str, number: int) -> int:
    """Return the last step whose loss an attempt reported; 0 if there is none."""
    return _last_step(session, job_id, Metric.attempt == number)


def last_step_before(session: Session, job_id: str, number: int) -> int:
    """Return the last step whose loss any attempt before this one reported; 0 if there is none."""
    return _last_step(session, job_id, Metric.attempt < number)


def _last_step(session: Session, job_id: str, attempts: ColumnElement[bool]) -> int:
    step = session.scalars(
        select(Metric.step)
        .where(Metric.job_id == job_id, Metric.name == "loss", attempts)
        .order_by(Metric.step.desc())
        .limit(1)
    ).first()
    return step or 0


def time_used(session: Session, owner: str, *, before: int | None = None) -> timedelta:
    """Return the total confirmed runtime of an owner's runs; with `before`, of runs with a smaller number."""
    query = select(func.sum(Run.ran_seconds)).where(Run.owner == owner)
    if before is not None:
        query = query.where(Run.number < before)
    return timedelta(seconds=session.scalar(query) or 0.0)


def count_lost(session: Session, owner: str, after: int) -> int:
    """Count the lost runs of an owner with numbers greater than `after`."""
    return _count(session, owner, after, Run.state == AttemptState.LOST)


def count_ended_with(session: Session, owner: str, error_type: str, after: int) -> int:
    """Count the runs of an owner with numbers greater than `after` that ended with an error of this type."""
    return _count(session, owner, after, Run.error["type"].as_string() == error_type)


def _count(session: Session, owner: str, after: int, condition: ColumnElement[bool]) -> int:
    counted = (Run.owner == owner, Run.number > after, condition)
    return session.execute(select(func.count()).select_from(Run).where(*counted)).scalar_one()


def mark_finalized(session: Session, kind: type[Run], owner: str, number: int) -> None:
    """Mark an ended run as finalized, in the column `settled`."""
    session.execute(
        update(kind)
        .where(kind.owner == owner, kind.number == number, kind.finished_at.is_not(None))
        .values(settled=True)
    )
