"""SQL of live, ended and finalized attempts, and of the resources that they hold."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from pydantic import ValidationError
from sqlalchemy import Row, Select, func, select, tuple_
from sqlalchemy.orm import Session

from service.db.models import Attempt, Checkpoint, Event, Job, Run
from service.protocol import PLACEMENT, PlacementData
from service.runs.repository import RunView
from service.scheduling.admission import Running
from service.scheduling.occupancy import Placement, read_placement
from service.scheduling.packing import Demand
from service.scheduling.preemption import Candidate, Rank
from service.scheduling.repository.resources import MAX_CACHED, load_resources, time_used
from service.states import AttemptState, Desired, JobStatus, StopReason

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class AttemptView(RunView):
    """A snapshot of an attempt and the parts of its job that the dispatcher needs."""

    created_at: datetime
    heartbeat_at: datetime | None
    progress_reported_at: datetime | None
    progressed_at: datetime | None
    ran: timedelta
    """Confirmed runtime: a gap between heartbeats counts for at most `liveness.MAX_SILENCE`."""
    finished_at: datetime | None
    status: JobStatus
    desired: Desired
    """What a person requested."""
    stop_reason: StopReason | None
    """Why the service itself stops the attempt."""
    stop_requested_at: datetime | None
    job_started_at: datetime | None
    demand: Demand
    """Resources that the attempt holds."""
    limit: timedelta
    """Time limit of all attempts of the job together."""
    has_error: bool
    """Whether the attempt ended with an error without a log tail."""

    @property
    def job_id(self) -> str:
        return self.owner

    @property
    def requested(self) -> Desired:
        """What the attempt should do: the request of a person, or else of the service."""
        return Desired.PAUSE if self.desired == Desired.RUN and self.stop_reason else self.desired

    @property
    def standstill(self) -> timedelta:
        """How long the attempt had made no progress at its last report.

        Before the first report of progress, which rank 0 sends, the driver's heartbeats count as reports.
        """
        reported = self.progress_reported_at or self.heartbeat_at
        if reported is None or self.progressed_at is None:
            return timedelta()
        return reported - self.progressed_at


class Ended(NamedTuple):
    """Position of an attempt in the order of ends."""

    at: datetime
    owner: str = ""
    number: int = 0

    @classmethod
    def from_view(cls, attempt: AttemptView) -> Ended:
        """Return the position of an ended attempt."""
        assert attempt.finished_at is not None
        return cls(attempt.finished_at, attempt.owner, attempt.number)


_COPIED = (
    "number",
    "submission_id",
    "created_at",
    "heartbeat_at",
    "progress_reported_at",
    "progressed_at",
    "finished_at",
    "stop_requested_at",
)
"""Fields of a view that are columns of the attempt."""

# Built once, because each round needs them and SQLAlchemy takes longer to build a statement than to run it.
# They select columns, because rows of jobs contain large specs.
_ATTEMPTS = select(
    *(getattr(Attempt, name) for name in ("job_id", *_COPIED)),
    *(Attempt.state, Attempt.ran_seconds, Attempt.error, Attempt.stop_reason),
    *(Job.status, Job.desired, Job.started_at, Job.max_hours),
    func.coalesce(Attempt.workers, Job.workers).label("workers"),
).join(Job, Job.id == Attempt.job_id)
_LIVE_ATTEMPTS = _ATTEMPTS.where(Attempt.finished_at.is_(None))
_ENDED = _ATTEMPTS.where(~Attempt.settled, Attempt.finished_at.is_not(None)).order_by(
    Attempt.finished_at
)


def live_attempts(session: Session) -> list[AttemptView]:
    """Return the attempts that have not ended, oldest first."""
    # Ordered by the database, SQLite would read all attempts in this order.
    return sorted(_attempts(session, _LIVE_ATTEMPTS), key=lambda attempt: attempt.created_at)


def ended_attempts(session: Session) -> list[AttemptView]:
    """Return the attempts that have ended and are not finalized, oldest first."""
    return _attempts(session, _ENDED)


def finalized_attempts(
    session: Session, *, after: Ended, before: datetime, limit: int
) -> list[AttemptView]:
    """Return finalized attempts that ended after a position and before a time, oldest first."""
    position = (Attempt.finished_at, Attempt.owner, Attempt.number)
    ended = (Attempt.settled, tuple_(*position) > after, Attempt.finished_at < before)
    return _attempts(session, _ATTEMPTS.where(*ended).order_by(*position).limit(limit))


def has_unfinalized_attempt(session: Session, job_id: str) -> bool:
    """Whether an attempt of the job may still run, or its checkpoints may not be adopted yet."""
    attempt = select(Run.number).where(Run.owner == job_id, ~Run.settled).limit(1)
    return session.scalar(attempt) is not None


def _attempts(session: Session, query: Select[*tuple[Any, ...]]) -> list[AttemptView]:
    rows = session.execute(query).all()
    resources = load_resources(session, [row.job_id for row in rows])
    return [
        AttemptView(
            owner=row.job_id,
            **{name: getattr(row, name) for name in _COPIED},
            state=AttemptState(row.state),
            ran=timedelta(seconds=row.ran_seconds),
            status=JobStatus(row.status),
            desired=Desired(row.desired),
            stop_reason=row.stop_reason and StopReason(row.stop_reason),
            job_started_at=row.started_at,
            demand=resources[row.job_id].with_workers(row.workers),
            limit=resources[row.job_id].limit(row.max_hours),
            has_error=row.error is not None and "log_tail" not in row.error,
        )
        for row in rows
    ]


AVOIDED = "avoided_nodes"
"""Key in the data of an attempt's start event: ids of the nodes that it avoids."""

# Can be cached, because the event is written with the attempt and never changes.
_avoided_at_start: dict[tuple[str, int], frozenset[str]] = {}


def avoided_nodes(session: Session, job_id: str, number: int) -> frozenset[str]:
    """Return the ids of the nodes that an attempt avoids, as decided at its start."""
    if (job_id, number) not in _avoided_at_start:
        if len(_avoided_at_start) > MAX_CACHED:
            _avoided_at_start.clear()
        _avoided_at_start[job_id, number] = _read_avoided(session, job_id, number)
    return _avoided_at_start[job_id, number]


def _read_avoided(session: Session, job_id: str, number: int) -> frozenset[str]:
    is_status = Event.job_id == job_id, Event.type == "status"
    for data in session.scalars(select(Event.data).where(*is_status).order_by(Event.seq.desc())):
        if data.get("to") == JobStatus.STARTING and data.get("attempt") == number:
            return frozenset(data.get(AVOIDED, ()))
    return frozenset()


_CANDIDATES = (
    select(
        Job.id,
        Attempt.number,
        Job.preemptible,
        Job.priority,
        Attempt.created_at,
        select(func.max(Checkpoint.created_at))
        .where(Checkpoint.job_id == Attempt.job_id, Checkpoint.attempt == Attempt.number)
        .scalar_subquery()
        .label("saved"),
    )
    .join(Attempt, Attempt.job_id == Job.id)
    .where(
        Attempt.finished_at.is_(None),
        Attempt.state == AttemptState.RUNNING,
        Attempt.progress_reported_at.is_not(None),
        Attempt.stop_reason.is_(None),
        Job.desired == Desired.RUN,
    )
)
_OF_JOB = (
    Job.id,
    Job.desired,
    Job.account_id,
    Job.tenant,
    Job.max_hours,
    func.coalesce(Attempt.workers, Job.workers).label("workers"),
)
_HOLDING = (
    select(*_OF_JOB, Attempt.number, Attempt.stop_reason, Attempt.created_at.label("began_at"))
    .add_columns(Attempt.state)
    .join(Attempt, Attempt.job_id == Job.id)
    .where(Attempt.finished_at.is_(None))
)
# Jobs that wait for a retry, with the number of workers of their last attempt.
_BETWEEN_ATTEMPTS = (
    select(*_OF_JOB, Job.not_before.label("began_at"))
    .join(Attempt, (Attempt.job_id == Job.id) & (Attempt.number == Job.attempt), isouter=True)
    .where(Job.status == JobStatus.RETRY_WAIT)
)


def candidates(session: Session, taken: Sequence[Running]) -> list[Candidate]:
    """Return the attempts that may be preempted: they train and are not stopping."""
    held = {holding.job_id: holding for holding in taken if holding.job_id is not None}
    return [
        Candidate(
            row.id,
            row.number,
            Rank(not row.preemptible, row.priority),
            unsaved_since=row.saved or row.created_at,
            started_at=row.created_at,
            holds=held[row.id],
        )
        for row in session.execute(_CANDIDATES)
        if row.id in held
    ]


def running(session: Session, now: datetime) -> list[Running]:
    """Return the resources that live attempts hold, and the latest end of each.

    Attempts with a stop request may end at any moment. Jobs that wait for a retry keep their resources, so that
    a younger long job does not start before the retry.
    """
    live = session.execute(_HOLDING).all()
    between = session.execute(_BETWEEN_ATTEMPTS).all()
    job_ids = [row.id for row in (*live, *between)]
    resources, used = load_resources(session, job_ids), time_used(session, job_ids)
    # An attempt has ranks only after its driver has reported.
    placed = placements(
        session, [(row.id, row.number) for row in live if row.state == AttemptState.RUNNING]
    )

    def holding(
        row: Row[*tuple[Any, ...]],
        stops: bool,
        avoided: frozenset[str],
        placement: Placement | None,
        began_at: datetime | None,
    ) -> Running:
        limit = resources[row.id].limit(row.max_hours)
        ends_by = row.began_at + limit - used.get(row.id, timedelta())
        at = now if stops or row.desired != Desired.RUN else max(now, ends_by)
        demand = resources[row.id].with_workers(row.workers).without(avoided)
        placement = _of_all(demand, placement)
        return Running(demand, at, row.account_id, placement, row.tenant, row.id, began_at)

    return [
        *(
            holding(
                row,
                row.stop_reason is not None,
                avoided_nodes(session, row.id, row.number),
                placed.get((row.id, row.number)),
                row.began_at,
            )
            for row in live
        ),
        *(holding(row, False, frozenset(), None, None) for row in between),
    ]


def attempts_on(session: Session, nodes: Collection[str]) -> set[tuple[str, int]]:
    """Return the running attempts with a rank or the driver on one of these nodes, given by id."""
    running = Attempt.finished_at.is_(None), Attempt.state == AttemptState.RUNNING
    rows = session.execute(select(Attempt.job_id, Attempt.number).where(*running))
    placed = placements(session, [(row.job_id, row.number) for row in rows])
    return {attempt for attempt, placement in placed.items() if placement.keys() & set(nodes)}


def _of_all(demand: Demand, placement: Placement | None) -> Placement | None:
    # Ignore a placement of a different number of workers, which would miscount the nodes.
    is_whole = placement is not None and sum(placement.values()) == demand.workers
    return placement if is_whole else None


def resources_in_use(session: Session, now: datetime) -> list[Running]:
    """Return all resources that admission counts as taken: by `running`, and by ended attempts.

    An ended attempt counts until its driver has ended, but not against a quota. A job that waits for a retry
    counts once.
    """
    ended = [item for item in ended_attempts(session) if item.status != JobStatus.RETRY_WAIT]
    placed = placements(session, [(item.job_id, item.number) for item in ended])
    return running(session, now) + [
        Running(
            item.demand,
            now,
            placement=_of_all(item.demand, placed.get((item.job_id, item.number))),
        )
        for item in ended
    ]


# Can be cached, because the ranks of an attempt never move.
_placement_by_attempt: dict[tuple[str, int], Placement] = {}


def placements(
    session: Session, attempts: Collection[tuple[str, int]]
) -> dict[tuple[str, int], Placement]:
    """Return the nodes of the ranks of the attempts that have reported them."""
    missing = {
        job_id for job_id, number in attempts if (job_id, number) not in _placement_by_attempt
    }
    if missing:
        if len(_placement_by_attempt) > MAX_CACHED:
            _placement_by_attempt.clear()
        events = select(Event.job_id, Event.data).where(
            Event.job_id.in_(missing), Event.type == PLACEMENT
        )
        for job_id, stored in session.execute(events):
            try:
                data = PlacementData.model_validate(stored)
            except ValidationError as error:  # stored by an API of another version
                logger.warning("The placement of job %s cannot be read: %s", job_id, error)
            else:
                _placement_by_attempt[job_id, data.attempt] = read_placement(data)
    return {
        attempt: _placement_by_attempt[attempt]
        for attempt in attempts
        if attempt in _placement_by_attempt
    }
