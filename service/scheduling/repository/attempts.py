"""SQL of live, ended and finalized attempts, for the dispatcher."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Select, func, select, tuple_
from sqlalchemy.orm import Session

from service.db.models import Attempt, Event, Job
from service.runs.repository import RunView
from service.scheduling.packing import Demand
from service.scheduling.repository.resources import MAX_CACHED, load_resources
from service.states import LIVE_ATTEMPT, AttemptState, Desired, JobStatus, StopReason


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
        """The owner of the attempt."""
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
_LIVE = _ATTEMPTS.where(Attempt.state.in_(LIVE_ATTEMPT)).order_by(Attempt.created_at)
_ENDED = _ATTEMPTS.where(~Attempt.settled, Attempt.finished_at.is_not(None)).order_by(
    Attempt.finished_at
)


def live_attempts(session: Session) -> list[AttemptView]:
    """Return the attempts that have not ended, oldest first."""
    return _attempts(session, _LIVE)


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
    attempt = select(Attempt.number).where(Attempt.owner == job_id, ~Attempt.settled).limit(1)
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
