"""SQL of scheduling: what waits, what takes room, and the last snapshot of the cluster.

Nothing here commits; the caller's transaction does.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from service.db.models import Attempt, ClusterSnapshot, Job, Token
from service.scheduling.admission import Queued, Quota, Running
from service.scheduling.nodes import Node
from service.scheduling.packing import Demand
from service.states import LIVE_ATTEMPT, AttemptState, Desired, JobStatus

_HAS_ATTEMPT = frozenset(
    {JobStatus.STARTING, JobStatus.RUNNING, JobStatus.PAUSING, JobStatus.CANCELLING}
)


@dataclass(frozen=True)
class AttemptView:
    """An attempt with the parts of its job that the dispatcher needs, read at one moment."""

    job_id: str
    number: int
    submission_id: str
    state: AttemptState
    created_at: datetime
    heartbeat_at: datetime | None
    rank_heard_at: datetime | None
    progressed_at: datetime | None
    ran: timedelta
    """Confirmed runtime: gaps between heartbeats longer than `lifecycle.SILENCE` are cut to it."""
    finished_at: datetime | None
    status: JobStatus
    desired: Desired
    job_started_at: datetime | None
    demand: Demand
    """Resources that the attempt holds."""
    limit: timedelta
    """Time limit of all attempts of the job together."""
    has_error: bool
    """The attempt ended with an error that has no log tail yet."""


def live_attempts(session: Session) -> list[AttemptView]:
    """Attempts that have not ended, oldest first."""
    live = Attempt.state.in_(LIVE_ATTEMPT)
    return _attempts(session, _ATTEMPTS.where(live).order_by(Attempt.created_at))


def ended_attempts(session: Session) -> list[AttemptView]:
    """Attempts that have ended and are not settled, oldest first."""
    ended = (~Attempt.settled, Attempt.finished_at.is_not(None))
    return _attempts(session, _ATTEMPTS.where(*ended).order_by(Attempt.finished_at))


def queued(session: Session) -> list[Queued]:
    """All jobs that wait for room, as admission looks at them: by priority, then first come."""
    used = _time_used(session, {JobStatus.QUEUED})
    rows = session.execute(
        select(Job.id, Job.attempt, Job.token_id, Token.max_running_jobs, Token.max_gpus)
        .join(Token, Token.id == Job.token_id, isouter=True)
        .where(Job.status == JobStatus.QUEUED, Job.desired == Desired.RUN)
        .order_by(Job.priority.desc(), Job.id)
    ).all()
    resources = _resources(session, [row.id for row in rows])
    return [
        Queued(
            job_id,
            attempt,
            resources[job_id].demand,
            lasts=max(timedelta(), resources[job_id].limit - used.get(job_id, timedelta())),
            token_id=token_id,
            quota=Quota(max_running_jobs, max_gpus),
        )
        for job_id, attempt, token_id, max_running_jobs, max_gpus in rows
    ]


def running(session: Session, now: datetime) -> list[Running]:
    """What live attempts take, and until when at most; what is to stop may end at any moment.

    Jobs that are about to be tried again keep their room meanwhile: a rank that was killed must not
    send a job behind a younger one that takes a day.
    """
    used = _time_used(session, _HAS_ATTEMPT | {JobStatus.RETRY_WAIT})
    rows = session.execute(
        select(Job.id, Job.desired, Job.token_id, Attempt.created_at)
        .join(Attempt, Attempt.job_id == Job.id)
        .where(Attempt.state.in_(LIVE_ATTEMPT))
    ).all()
    between = session.execute(
        select(Job.id, Job.desired, Job.token_id, Job.not_before).where(
            Job.status == JobStatus.RETRY_WAIT
        )
    ).all()
    resources = _resources(session, [row.id for row in (*rows, *between)])
    found = []
    for job_id, desired, token_id, began_at in (*rows, *between):
        assert began_at is not None
        ends_by = began_at + resources[job_id].limit - used.get(job_id, timedelta())
        stops = desired != Desired.RUN
        at = now if stops else max(now, ends_by)
        found.append(Running(resources[job_id].demand, at, token_id))
    return found


def taking_room(session: Session, now: datetime) -> list[Running]:
    """All that admission counts as taken: what runs, and ended attempts until their driver is gone,
    which use no quota any more. A job that is to be tried again counts once."""
    ended = [
        Running(attempt.demand, now)
        for attempt in ended_attempts(session)
        if attempt.status != JobStatus.RETRY_WAIT
    ]
    return running(session, now) + ended


class _Resources(NamedTuple):
    demand: Demand
    limit: timedelta


# A job's resources never change, and to take those of a thousand jobs out of their specs in each round
# would be most of it.
_known_resources: dict[str, _Resources] = {}

_MOST_KNOWN, _AT_A_TIME = 100_000, 1000


def _resources(session: Session, job_ids: Sequence[str]) -> dict[str, _Resources]:
    found = {job_id: _known_resources.get(job_id) for job_id in job_ids}
    unknown = [job_id for job_id, resources in found.items() if resources is None]
    read: dict[str, _Resources] = {}
    for start in range(0, len(unknown), _AT_A_TIME):
        some = Job.id.in_(unknown[start : start + _AT_A_TIME])
        for job_id, asked in session.execute(select(Job.id, Job.resolved["resources"]).where(some)):
            read[job_id] = _Resources(Demand.of(asked), timedelta(hours=asked["max_hours"]))
    if len(_known_resources) > _MOST_KNOWN:
        _known_resources.clear()
    _known_resources.update(read)
    return {job_id: read[job_id] if kept is None else kept for job_id, kept in found.items()}


def _time_used(session: Session, statuses: Collection[JobStatus]) -> dict[str, timedelta]:
    """How long the attempts that are over took in all, by job."""
    rows = session.execute(
        select(Attempt.job_id, func.sum(Attempt.ran_seconds))
        .join(Job, Job.id == Attempt.job_id)
        .where(Job.status.in_(statuses), Attempt.state.not_in(LIVE_ATTEMPT))
        .group_by(Attempt.job_id)
    )
    return {job_id: timedelta(seconds=seconds) for job_id, seconds in rows}


# Columns and not rows: a job's specs are large, and nobody here reads them.
_ATTEMPTS = select(
    Attempt.job_id,
    Attempt.number,
    Attempt.submission_id,
    Attempt.state,
    Attempt.created_at,
    Attempt.heartbeat_at,
    Attempt.rank_heard_at,
    Attempt.progressed_at,
    Attempt.ran_seconds,
    Attempt.finished_at,
    Attempt.error,
    Job.status,
    Job.desired,
    Job.started_at,
).join(Job, Job.id == Attempt.job_id)


def _attempts(session: Session, query: Select[*tuple[Any, ...]]) -> list[AttemptView]:
    rows = session.execute(query).all()
    resources = _resources(session, [row.job_id for row in rows])
    return [
        AttemptView(
            job_id=row.job_id,
            number=row.number,
            submission_id=row.submission_id,
            state=AttemptState(row.state),
            created_at=row.created_at,
            heartbeat_at=row.heartbeat_at,
            rank_heard_at=row.rank_heard_at,
            progressed_at=row.progressed_at,
            ran=timedelta(seconds=row.ran_seconds),
            finished_at=row.finished_at,
            status=JobStatus(row.status),
            desired=Desired(row.desired),
            job_started_at=row.started_at,
            demand=resources[row.job_id].demand,
            limit=resources[row.job_id].limit,
            has_error=row.error is not None and "log_tail" not in row.error,
        )
        for row in rows
    ]


_ROW = 1


def snapshot(session: Session) -> ClusterSnapshot | None:
    """The last snapshot of the cluster; `None` before the first."""
    return session.get(ClusterSnapshot, _ROW)


def save_snapshot(session: Session, snapshot: ClusterSnapshot) -> None:
    """Replace the snapshot; sets its id."""
    snapshot.id = _ROW
    session.merge(snapshot)


def nodes_of(snapshot: ClusterSnapshot) -> tuple[Node, ...]:
    """The nodes of a snapshot."""
    return tuple(Node(**node) for node in snapshot.nodes)
