"""SQL of the metrics: a few grouped queries over indexes, cheap enough for every scrape."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import Row, func, select
from sqlalchemy.orm import Session

from service.db.models import Attempt, Job
from service.states import LIVE_ATTEMPT, AttemptState, JobStatus


def jobs_by_status(session: Session) -> dict[str, int]:
    """Number of jobs by status."""
    query = select(Job.status, func.count()).where(Job.deleted_at.is_(None))
    rows = session.execute(query.group_by(Job.status))
    return {row[0]: row[1] for row in rows}


def attempts_by_state(session: Session) -> dict[str, int]:
    """Number of attempts by state."""
    rows = session.execute(select(Attempt.state, func.count()).group_by(Attempt.state))
    return {row[0]: row[1] for row in rows}


def first_in_queue(session: Session) -> str | None:
    """Id of the oldest job that waits for its first attempt."""
    waiting = select(func.min(Job.id)).where(Job.status == JobStatus.QUEUED, Job.attempt == 0)
    return session.scalar(waiting)


def oldest_heartbeat(session: Session) -> datetime | None:
    """The oldest last heartbeat among live attempts."""
    return session.scalar(
        select(func.min(Attempt.heartbeat_at)).where(Attempt.state.in_(LIVE_ATTEMPT))
    )


def oldest_start(session: Session) -> datetime | None:
    """When the oldest live attempt began that has not reported."""
    silent = LIVE_ATTEMPT - {AttemptState.RUNNING}
    return session.scalar(select(func.min(Attempt.created_at)).where(Attempt.state.in_(silent)))


def later_attempts(session: Session) -> int:
    """Number of attempts after the first of their job."""
    return session.scalar(select(func.count()).where(Attempt.number > 1)) or 0


def first_attempts(session: Session, since: datetime) -> Iterable[Row[str, datetime]]:
    """(job id, when it began) of the first attempts that began after `since`, oldest first."""
    return session.execute(
        select(Attempt.job_id, Attempt.created_at)
        .where(Attempt.number == 1, Attempt.created_at > since)
        .order_by(Attempt.created_at)
        .execution_options(yield_per=1000)
    )
