"""SQL of jobs and of what belongs to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import Row, Select, select
from sqlalchemy.orm import Session

from service.db.models import (
    Attempt,
    Dataset,
    Evaluation,
    Event,
    IdempotencyKey,
    Job,
    Metric,
)


def _with_dataset(tenant: str) -> Select[Job, str]:
    return (
        select(Job, Dataset.name)
        .join(Dataset, Job.dataset_id == Dataset.id)
        .where(Job.tenant == tenant)
    )


def get(session: Session, tenant: str, job_id: str) -> Row[Job, str] | None:
    """A tenant's job and the name of its data set."""
    return session.execute(
        _with_dataset(tenant).where(Job.id == job_id).execution_options(populate_existing=True)
    ).one_or_none()


def newest(
    session: Session,
    tenant: str,
    *,
    statuses: Sequence[str] = (),
    method: str | None = None,
    tag: tuple[str, str] | None = None,
    after: str | None = None,
    limit: int,
) -> Sequence[Row[Job, str]]:
    """A tenant's jobs, newest first; one more than `limit`."""
    query = _with_dataset(tenant).order_by(Job.id.desc())
    if statuses:
        query = query.where(Job.status.in_(statuses))
    if method is not None:
        query = query.where(Job.method == method)
    if tag is not None:
        query = query.where(Job.tags[tag[0]].as_string() == tag[1])
    if after is not None:
        query = query.where(Job.id < after)
    return session.execute(query.limit(limit + 1)).all()


def idempotency_key(session: Session, tenant: str, key: str) -> IdempotencyKey | None:
    """What was answered to an Idempotency-Key, if it was used."""
    return session.get(IdempotencyKey, (tenant, key), populate_existing=True)


def attempts(session: Session, job_id: str) -> Sequence[Attempt]:
    """A job's attempts, oldest first."""
    return session.scalars(
        select(Attempt).where(Attempt.job_id == job_id).order_by(Attempt.number)
    ).all()


def evaluations(session: Session, job_id: str) -> Sequence[Evaluation]:
    """A job's evaluations by step; of a step and subject evaluated again, the newest attempt's."""
    rows = session.scalars(
        select(Evaluation)
        .where(Evaluation.job_id == job_id)
        .order_by(Evaluation.step, Evaluation.attempt, Evaluation.id)
    )
    return list({(row.step, row.subject): row for row in rows}.values())


def progress_of_events(session: Session, job_id: str) -> tuple[str, int]:
    """A job's status, and the sequence number of the last event that it had then."""
    status, next_event = session.execute(
        select(Job.status, Job.next_event).where(Job.id == job_id)
    ).one()
    return status, next_event - 1


def events(session: Session, job_id: str, after: int, limit: int) -> Sequence[Event]:
    """A job's events behind a sequence number, in order; one more than `limit`."""
    return session.scalars(
        select(Event)
        .where(Event.job_id == job_id, Event.seq > after)
        .order_by(Event.seq)
        .limit(limit + 1)
    ).all()


def metrics(
    session: Session, job_id: str, names: Sequence[str], from_step: int
) -> Iterable[Row[str, int, float, float]]:
    """(name, step, time, value) by name and step; the newest attempt comes last at each step."""
    query = (
        select(Metric.name, Metric.step, Metric.time, Metric.value)
        .where(Metric.job_id == job_id, Metric.step >= from_step)
        .order_by(Metric.name, Metric.step, Metric.attempt)
    )
    if names:
        query = query.where(Metric.name.in_(names))
    return session.execute(query)
