"""SQL of the events of a tenant: their order, and reading them.

Events are numbered per job when they are added. Their `position` among the events of all jobs is assigned later, in
transactions that a lock serializes, so that a reader that has seen a position has seen all smaller ones. A number
taken while an event is added would not suffice: on PostgreSQL, transactions may commit in another order than they take
numbers, and a reader would skip an event that is committed late.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Row, Select, case, exists, func, select, union_all, update
from sqlalchemy.orm import Session

from service.db.models import Event, EventCounter, Job
from service.events.levels import BAD_VERDICTS, ERRORS, LEVELS, WARNINGS, WITHOUT_GPUS
from service.states import JobStatus

_TO, _ERROR, _VERDICT, _CLUSTER = (
    Event.data[key].as_string() for key in ("to", "error", "verdict", "cluster")
)
_LEVEL = case(
    ((Event.type == "status") & (_TO == JobStatus.FAILED), "error"),
    ((Event.type == "status") & _ERROR.is_not(None), "warning"),
    *(
        ((Event.type == "verdict") & _VERDICT.is_not_distinct_from(verdict), level)
        for verdict, level in BAD_VERDICTS.items()
    ),
    ((Event.type == "no_gpus") & _CLUSTER.is_not_distinct_from(WITHOUT_GPUS), "info"),
    (Event.type.in_(sorted(ERRORS)), "error"),
    (Event.type.in_(sorted(WARNINGS)), "warning"),
    else_="info",
)
# Built once, because they run for every poll.
_HAS_UNPLACED = select(exists().where(Event.position.is_(None)))
_LAST = select(EventCounter.last).where(EventCounter.id == 1)


@dataclass(frozen=True)
class EventFilter:
    """The events of a tenant to read; an empty field means all jobs, types or levels."""

    tenant: str
    jobs: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()


def has_unassigned(session: Session) -> bool:
    """Whether any event has no position yet."""
    return session.execute(_HAS_UNPLACED).scalar_one()


def last_position(session: Session) -> int:
    """Return the greatest assigned position; later events get greater ones."""
    return session.execute(_LAST).scalar_one()


def assign_positions(session: Session) -> int:
    """Assign the next positions to all events without one, in order of time; return their number.

    Events of a job keep their order, even if the clocks of the processes that added them differ.
    """
    last = session.execute(_LAST.with_for_update()).scalar_one()
    # Use a separate statement: on PostgreSQL it sees everything that was committed before the lock was taken.
    at = func.max(Event.at).over(partition_by=Event.job_id, order_by=Event.seq)
    unplaced = (
        select(
            Event.job_id,
            Event.seq,
            at.label("at"),
            _LEVEL.label("level"),
            Job.tenant.label("tenant"),
        )
        .join(Job, Job.id == Event.job_id)
        .where(Event.position.is_(None))
        .subquery()
    )
    order = (unplaced.c.at, unplaced.c.job_id, unplaced.c.seq)
    numbered = select(unplaced, func.row_number().over(order_by=order).label("number")).subquery()
    placed = session.execute(
        update(Event)
        .where(Event.job_id == numbered.c.job_id, Event.seq == numbered.c.seq)
        .values(position=last + numbered.c.number, tenant=numbered.c.tenant, level=numbered.c.level)
    ).rowcount  # type: ignore[attr-defined]  # of a CursorResult
    if placed:
        session.execute(update(EventCounter).where(EventCounter.id == 1).values(last=last + placed))
    return int(placed)


def newest_positions(session: Session, after: int) -> dict[str, int]:
    """Return the greatest position of each tenant with events after a position."""
    query = select(Event.tenant, func.max(Event.position)).where(Event.position > after)
    rows = session.execute(query.group_by(Event.tenant))
    return {tenant: position for tenant, position in rows if tenant and position}


def newest(
    session: Session, filter: EventFilter, before: int | None, limit: int
) -> Sequence[Row[Event, str]]:
    """Return up to `limit` + 1 events before a position, newest first, with the names of their jobs."""
    bounds = () if before is None else (Event.position < before,)
    return _read(session, filter, bounds, Event.position.desc(), limit)


def since(
    session: Session, filter: EventFilter, after: int, until: int, limit: int
) -> Sequence[Row[Event, str]]:
    """Return up to `limit` + 1 events after a position and until another one, in order, with the names of their jobs."""
    bounds = (Event.position > after, Event.position <= until)
    return _read(session, filter, bounds, Event.position.asc(), limit)


def _read(
    session: Session,
    filter: EventFilter,
    bounds: Sequence[ColumnElement[bool]],
    order: ColumnElement[int | None],
    limit: int,
) -> Sequence[Row[Event, str]]:
    # An index orders the positions within a level or type, so run one query for each, as in the list of jobs.
    parts = [query.where(*bounds).order_by(order).limit(limit + 1) for query in _parts(filter)]
    positions = (
        union_all(*(select(part.subquery()) for part in parts)) if len(parts) > 1 else parts[0]
    )
    query = (
        select(Event, Job.name)
        .join(Job, Job.id == Event.job_id)
        .where(Event.position.in_(positions))
        .order_by(order)
        .limit(limit + 1)
    )
    return session.execute(query).all()


def _parts(filter: EventFilter) -> list[Select[int | None]]:
    """Select the positions of the events that match, in queries that together yield each of them once."""
    query = (
        select(Event.position)
        .join(Job, Job.id == Event.job_id)
        .where(Event.tenant == filter.tenant, Event.position.is_not(None), Job.deleted_at.is_(None))
    )
    if filter.jobs:  # the primary key finds their few events
        if filter.types:
            query = query.where(Event.type.in_(filter.types))
        if filter.levels:
            query = query.where(Event.level.in_(filter.levels))
        return [query.where(Event.job_id.in_(filter.jobs))]
    if not filter.types:
        return [
            query.where(Event.level == level) for level in dict.fromkeys(filter.levels or LEVELS)
        ]
    if filter.levels:
        query = query.where(Event.level.in_(filter.levels))
    return [query.where(Event.type == type) for type in dict.fromkeys(filter.types)]
