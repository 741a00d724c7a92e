"""SQL for the dispatcher. The caller commits."""

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import bindparam, func, or_, select
from sqlalchemy.orm import Session

from service.datasets.ingests import repository as ingests
from service.db.models import Attempt, Event, Job, Sweep
from service.runs.endings import LONGEST_RETRY
from service.scheduling.repository import Ended
from service.states import TERMINAL, Desired, JobStatus
from service.tasks.repository import model_runs, preparations, previews, searches

# Built once, because each round needs it and SQLAlchemy takes longer to build a statement than to run it.
_DUE_RETRIES = select(Job.id).where(
    Job.status == JobStatus.RETRY_WAIT,
    or_(Job.not_before <= bindparam("now"), Job.not_before > bindparam("latest")),
)
# A paused job waits for its user.
_IDLE_JOB = (*TERMINAL, JobStatus.PAUSED)
_HAS_WORK = select(
    or_(
        select(Job.id).where(Job.status.not_in(_IDLE_JOB)).exists(),
        select(Attempt.owner).where(~Attempt.settled).exists(),
        ingests.AWAITED.exists(),
        *(tasks.awaited().exists() for tasks in (previews, preparations, model_runs, searches)),
    )
)


def due_retries(session: Session, now: datetime) -> Sequence[str]:
    """Return the jobs whose wait for a retry is over.

    If the clock was set back, a wait takes at most the longest retry delay.
    """
    values = {"now": now, "latest": now + LONGEST_RETRY}
    return session.scalars(_DUE_RETRIES, values).all()


def has_work(session: Session) -> bool:
    """Whether any run is queued, live, or ended but not finalized."""
    return bool(session.scalar(_HAS_WORK))


def stop_requested_at(session: Session, job_id: str, desired: Desired) -> datetime | None:
    """Return the time of the last request to cancel or to pause the job."""
    return session.scalar(
        select(func.max(Event.at)).where(
            Event.job_id == job_id, Event.type == f"{desired}-requested"
        )
    )


def waiting_events(session: Session, job_ids: Collection[str]) -> set[tuple[str, int, str]]:
    """Return the recorded `waiting` events of these jobs as (job, next attempt, what it waits for)."""
    rows = session.execute(
        select(Event.job_id, Event.data).where(Event.job_id.in_(job_ids), Event.type == "waiting")
    )
    return {(job_id, data["attempt"], data.get("for", "room")) for job_id, data in rows}


def lock_free(session: Session, job_ids: Collection[str]) -> set[str]:
    """Lock those of these jobs whose rows no other transaction has locked, and return them."""
    free = select(Job.id).where(Job.id.in_(job_ids))
    return set(session.scalars(free.with_for_update(key_share=True, skip_locked=True)))


def with_logs(session: Session, job_ids: Collection[str]) -> set[str]:
    """Filter jobs: return the ones that are not deleted and whose logs retention has not removed."""
    has_logs = (Job.deleted_at.is_(None), Job.logs_removed_at.is_(None))
    return set(session.scalars(select(Job.id).where(Job.id.in_(job_ids), *has_logs)))


def swept_until(session: Session, name: str) -> Ended | None:
    """Return how far a sweep has come, over restarts of the dispatcher."""
    row = session.get(Sweep, name)
    return None if row is None else Ended(row.finished_at, row.owner, row.number)


def keep_place(session: Session, name: str, until: Ended) -> None:
    """Record how far a sweep has come."""
    session.merge(Sweep(name=name, finished_at=until.at, owner=until.owner, number=until.number))
