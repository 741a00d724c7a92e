"""SQL of the metrics: queries over indexes of what has not ended, or is new since the last scrape."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Select, func, or_, select, text, tuple_
from sqlalchemy.orm import Session

from service.db.models import (
    CHECKPOINT_SWEEP,
    PENDING_DELIVERY,
    UNREMOVED,
    UNTHINNED,
    WAITING,
    Attempt,
    Dataset,
    Job,
    ModelRun,
    Preparation,
    Preview,
    Search,
    Sweep,
    Task,
    UtcDateTime,
    Webhook,
    WebhookDelivery,
)
from service.states import TERMINAL, AttemptState, DatasetState, JobStatus, TaskState

_TASKS: dict[str, type[Task]] = {
    "previews": Preview,
    "preparations": Preparation,
    "model_runs": ModelRun,
    "searches": Search,
}


class AttemptStart(NamedTuple):
    """An attempt that was created at a time."""

    job_id: str
    number: int
    at: datetime


class AttemptEnd(NamedTuple):
    """An attempt that ended at a time."""

    job_id: str
    number: int
    at: datetime
    state: str
    error_type: str | None


def _counts(session: Session, query: Select[str, int]) -> dict[str, int]:
    return dict(session.execute(query).all())


def jobs_by_status(session: Session) -> dict[str, int]:
    """Number of jobs that have not ended by status."""
    live = [status for status in JobStatus if status not in TERMINAL]
    query = select(Job.status, func.count()).where(Job.status.in_(live), Job.deleted_at.is_(None))
    return _counts(session, query.group_by(Job.status))


def attempts_by_state(session: Session) -> dict[str, int]:
    """Number of live attempts by state."""
    query = select(Attempt.state, func.count()).where(Attempt.finished_at.is_(None))
    return _counts(session, query.group_by(Attempt.state))


def ended_attempts(session: Session, since: datetime) -> Sequence[AttemptEnd]:
    """Return the attempts that ended at a time or later."""
    rows = session.execute(
        select(
            Attempt.job_id, Attempt.number, Attempt.finished_at, Attempt.state, Attempt.error_type
        ).where(Attempt.finished_at >= since)
    )
    return [
        AttemptEnd(job_id, number, at, state, error)
        for job_id, number, at, state, error in rows
        if at is not None
    ]


def begun_attempts(session: Session, since: datetime) -> Sequence[AttemptStart]:
    """Return the attempts that were created at a time or later."""
    rows = session.execute(
        select(Attempt.job_id, Attempt.number, Attempt.created_at).where(
            Attempt.created_at >= since
        )
    )
    return [AttemptStart(*row) for row in rows]


def oldest_heartbeat(session: Session) -> datetime | None:
    """Return the oldest last heartbeat among live attempts, or the start of attempts without one."""
    sign = func.coalesce(Attempt.heartbeat_at, Attempt.created_at, type_=UtcDateTime())
    return session.scalar(select(func.min(sign)).where(Attempt.finished_at.is_(None)))


def datasets_by_state(session: Session) -> dict[str, int]:
    """Number of data sets by state, without deleted ones."""
    named = Dataset.state.in_(list(DatasetState)), Dataset.deleted_at.is_(None)
    query = select(Dataset.state, func.count()).where(*named)
    return _counts(session, query.group_by(Dataset.state))


def dataset_images(session: Session) -> int:
    """Number of images of all data sets that are ready."""
    images = Dataset.facts["num_images"].as_integer()
    ready = (Dataset.state == DatasetState.READY, Dataset.deleted_at.is_(None))
    return session.scalar(select(func.sum(images)).where(*ready)) or 0


def oldest_waits(session: Session) -> dict[str, datetime | None]:
    """Return since when the oldest item of each queue of the dispatcher waits; `None`: none waits."""
    deleted = (
        select(func.min(Job.deleted_at)).where(Job.deleted_at.is_not(None)),
        select(func.min(Dataset.deleted_at)).where(text(UNREMOVED)),
    )
    ended = Attempt.finished_at.is_not(None)
    queues: dict[str, Select[*tuple[datetime | None]]] = {
        name: select(func.min(row.created_at)).where(row.state == TaskState.QUEUED)
        for name, row in _TASKS.items()
    } | {
        "jobs": select(func.min(Job.queued_at)).where(text(WAITING)),
        "finalizing": select(func.min(Attempt.finished_at)).where(~Attempt.settled, ended),
        # The first in line: the earliest end of all would be read from each of a long backlog.
        "thinning": select(Job.finished_at)
        .where(text(UNTHINNED), Job.finished_at.is_not(None))
        .order_by(Job.id)
        .limit(1),
        "webhooks": select(func.min(WebhookDelivery.queued_at)).where(text(PENDING_DELIVERY)),
    }
    marked = [at for each in deleted if (at := session.scalar(each)) is not None]
    return {
        "ingests": _oldest_pending_dataset(session),
        "deletions": min(marked, default=None),
        "sweeps": _oldest_unswept(session),
        **{name: session.scalar(query) for name, query in queues.items()},
    }


def _oldest_unswept(session: Session) -> datetime | None:
    """Return when the oldest attempt ended that the sweep for checkpoints has not passed."""
    place = session.get(Sweep, CHECKPOINT_SWEEP)
    if place is None:
        return None
    position = tuple_(Attempt.finished_at, Attempt.owner, Attempt.number)
    until = (place.finished_at, place.owner, place.number)
    query = select(Attempt.finished_at).where(position > until)
    return session.scalar(query.order_by(Attempt.finished_at).limit(1))


def disabled_webhooks(session: Session) -> int:
    """Number of webhooks that are disabled, by a person or because they failed."""
    disabled = select(func.count()).where(Webhook.disabled_at.is_not(None))
    return session.execute(disabled).scalar_one()


def _oldest_pending_dataset(session: Session) -> datetime | None:
    """Return since when the data set that has waited longest waits for its ingest."""
    states = (Dataset.state, Dataset.refresh_state)
    pending = or_(*(state == DatasetState.PENDING for state in states))
    oldest = select(func.min(Dataset.ingest_requested_at))
    return session.scalar(oldest.where(pending, Dataset.deleted_at.is_(None)))


def jobs_by_tenant(session: Session, statuses: Collection[JobStatus]) -> dict[str, int]:
    """Number of jobs with one of these statuses, by tenant."""
    query = select(Job.tenant, func.count()).where(Job.status.in_(statuses))
    return _counts(session, query.group_by(Job.tenant))


def tenants_by_job(session: Session, job_ids: Collection[str]) -> dict[str, str]:
    rows = session.execute(select(Job.id, Job.tenant).where(Job.id.in_(job_ids)))
    return {row[0]: row[1] for row in rows}


def oldest_start(session: Session) -> datetime | None:
    """Return the start of the oldest live attempt that has not reported."""
    silent = Attempt.finished_at.is_(None), Attempt.state != AttemptState.RUNNING
    # For the minimum SQLite would read all attempts in this order.
    return min(session.scalars(select(Attempt.created_at).where(*silent)), default=None)
