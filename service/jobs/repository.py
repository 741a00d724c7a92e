"""SQL for jobs and their tags, attempts, evaluations and events."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Row, Select, bindparam, delete, insert, select
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.orm import Session, undefer

from service.db.models import (
    Attempt,
    Base,
    Dataset,
    Evaluation,
    Event,
    IdempotencyKey,
    Job,
    JobTag,
    Tenant,
)
from service.states import JobStatus

# Built once, because building a statement takes half of its run time and every submission needs them.
_TAGS, _ANSWERS = (Base.metadata.tables[row.__tablename__] for row in (JobTag, IdempotencyKey))
_ADD_TAG = insert(_TAGS)
_ANSWER = select(IdempotencyKey.body_hash, IdempotencyKey.answer).where(
    IdempotencyKey.tenant == bindparam("tenant"), IdempotencyKey.key == bindparam("key")
)
_STORE_ANSWER = {
    dialect: dialect_insert(_ANSWERS).on_conflict_do_nothing().returning(_ANSWERS.c.key)
    for dialect, dialect_insert in (
        ("sqlite", sqlite_insert),
        ("postgresql", postgresql_insert),
    )
}

_MOST_SPEEDS = 20


class Speed(NamedTuple):
    """The settings and progress of a job that ran or runs."""

    id: str
    resolved: dict[str, Any]
    progress: dict[str, Any] | None
    workers: int | None


def speeds(session: Session, tenant: str, method: str) -> list[Speed]:
    """Return the newest jobs of a method that succeeded or run, newest first, at most `_MOST_SPEEDS`."""
    rows = session.execute(
        select(Job.id, Job.resolved, Job.progress, Job.workers)
        .where(
            Job.tenant == tenant,
            Job.method == method,
            Job.status.in_([JobStatus.SUCCEEDED, JobStatus.RUNNING]),
            Job.deleted_at.is_(None),
        )
        .order_by(Job.id.desc())
        .limit(_MOST_SPEEDS)
    )
    return [Speed(*row) for row in rows]


def with_dataset(tenant: str) -> Select[Job, str]:
    """Select a tenant's jobs, each with the name of its data set."""
    return (
        select(Job, Dataset.name)
        .options(undefer(Job.submitted_by), undefer(Job.marked_at))
        .join(Dataset, Job.dataset_id == Dataset.id)
        .where(Job.tenant == tenant, Job.deleted_at.is_(None))
    )


def get(session: Session, tenant: str, job_id: str) -> Row[Job, str] | None:
    """Return a tenant's job and the name of its data set."""
    return session.execute(
        with_dataset(tenant).where(Job.id == job_id).execution_options(populate_existing=True)
    ).one_or_none()


def submitted_by(session: Session, job_id: str) -> str | None:
    """Return the name of the user or token that submitted a job."""
    return session.scalars(select(Job.submitted_by).where(Job.id == job_id)).one()


def existing(session: Session, tenant: str, job_ids: Sequence[str]) -> set[str]:
    """Return the ids that belong to jobs of a tenant."""
    query = select(Job.id).where(
        Job.tenant == tenant, Job.deleted_at.is_(None), Job.id.in_(job_ids)
    )
    return set(session.scalars(query))


def by_id(session: Session, job_id: str) -> Job:
    """Return an existing job of any tenant."""
    return session.get_one(Job, job_id)


def store_tags(session: Session, job: Job) -> None:
    """Replace the stored tags of a job by its current ones."""
    session.execute(delete(JobTag).where(JobTag.job_id == job.id))
    add_tags(session, job)


def add_tags(session: Session, job: Job) -> None:
    """Store the tags of a new job."""
    rows = [
        {"tenant": job.tenant, "key": key, "value": value, "job_id": job.id}
        for key, value in job.tags.items()
    ]
    if rows:
        session.execute(_ADD_TAG, rows)


def stored_answer(session: Session, tenant: str, key: str) -> Row[str, dict[str, Any]] | None:
    """Return the body hash and the answer stored for an Idempotency-Key, if any."""
    return session.execute(_ANSWER, {"tenant": tenant, "key": key}).one_or_none()


def store_answer(session: Session, answer: dict[str, Any]) -> bool:
    """Store the answer for an Idempotency-Key; return `False` if another request stored one first.

    Args:
        answer: the columns of `IdempotencyKey`.
    """
    stored = session.execute(_STORE_ANSWER[session.get_bind().dialect.name], answer)
    return stored.one_or_none() is not None


def attempts(session: Session, job_id: str) -> Sequence[Attempt]:
    """Return a job's attempts, oldest first."""
    return session.scalars(
        select(Attempt).where(Attempt.job_id == job_id).order_by(Attempt.number)
    ).all()


def evaluations(session: Session, job_id: str) -> Sequence[Evaluation]:
    """Return a job's evaluations by step; for a repeated step, the newest attempt's."""
    rows = session.scalars(
        select(Evaluation)
        .where(Evaluation.job_id == job_id)
        .order_by(Evaluation.step, Evaluation.attempt, Evaluation.id)
    )
    return list({(row.step, row.subject): row for row in rows}.values())


def status_and_last_event(session: Session, job_id: str) -> tuple[str, int] | None:
    """Return a job's status and the number of its last event, read in one query; `None` once it is deleted."""
    row = session.execute(
        select(Job.status, Job.next_event).where(Job.id == job_id, Job.deleted_at.is_(None))
    ).one_or_none()
    return None if row is None else (row[0], row[1] - 1)


def events(session: Session, job_id: str, after: int, limit: int) -> Sequence[Event]:
    """Return up to `limit` + 1 events of a job after a sequence number, in order."""
    return session.scalars(
        select(Event)
        .where(Event.job_id == job_id, Event.seq > after)
        .order_by(Event.seq)
        .limit(limit + 1)
    ).all()


def tenant(session: Session, name: str) -> Tenant | None:
    """Return a tenant; `None` if it has the defaults."""
    return session.get(Tenant, name)


def lock_queue_limit(session: Session, tenant: str) -> int | None:
    """Return the limit of a tenant's queued jobs; `None`: unlimited. The tenant's row stays locked."""
    return session.scalar(
        select(Tenant.max_queued_jobs)
        .where(Tenant.name == tenant, Tenant.max_queued_jobs.is_not(None))
        # Avoid a deadlock of two submissions that hold `lock_tenant`.
        .with_for_update(key_share=True)
    )
