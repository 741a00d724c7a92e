"""SQL of jobs, and of their tags, attempts, evaluations, events and metrics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Row,
    Select,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    union_all,
)
from sqlalchemy.dialects.postgresql import insert as insert_of_postgresql
from sqlalchemy.dialects.sqlite import insert as insert_of_sqlite
from sqlalchemy.orm import InstrumentedAttribute, Session

from service.db.models import (
    Attempt,
    Base,
    Dataset,
    Evaluation,
    Event,
    IdempotencyKey,
    Job,
    JobTag,
    Metric,
)

# Per response, which takes some 200 MB while it is built.
_MAX_VALUES = 1_000_000
# Built once: they run for every submission, and building one takes half of its run time.
_TAGS, _ANSWERS = (Base.metadata.tables[row.__tablename__] for row in (JobTag, IdempotencyKey))
_ADD_TAG = insert(_TAGS)
_ANSWER = select(IdempotencyKey.body_hash, IdempotencyKey.answer).where(
    IdempotencyKey.tenant == bindparam("tenant"), IdempotencyKey.key == bindparam("key")
)
_STORE_ANSWER = {
    dialect: insert_or_not(_ANSWERS).on_conflict_do_nothing().returning(_ANSWERS.c.key)
    for dialect, insert_or_not in (
        ("sqlite", insert_of_sqlite),
        ("postgresql", insert_of_postgresql),
    )
}


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


def by_id(session: Session, job_id: str) -> Job:
    """Return an existing job of any tenant."""
    return session.get_one(Job, job_id)


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
    # Select ids first, from indexes alone, as rows are wide. One query for each status, as the index
    # orders ids only within a status; without duplicates, as a statement may have some 500 parts.
    queries = [
        _ids(tenant, status, method, tag, after).limit(limit + 1)
        for status in dict.fromkeys(statuses) or (None,)
    ]
    ids = (
        union_all(*(select(part.subquery()) for part in queries))
        if len(queries) > 1
        else queries[0]
    )
    query = _with_dataset(tenant).where(Job.id.in_(ids)).order_by(Job.id.desc())
    return session.execute(query.limit(limit + 1)).all()


def _ids(
    tenant: str,
    status: str | None,
    method: str | None,
    tag: tuple[str, str] | None,
    after: str | None,
) -> Select[str]:
    """Ids of a tenant's jobs, newest first."""
    if tag is None:
        id: InstrumentedAttribute[str] = Job.id
        query = select(id).where(Job.tenant == tenant)
    else:
        id = JobTag.job_id
        query = select(id).where(
            JobTag.tenant == tenant, JobTag.key == tag[0], JobTag.value == tag[1]
        )
        if status is not None or method is not None:
            query = query.join(Job, Job.id == id)
    if status is not None:
        query = query.where(Job.status == status)
    if method is not None:
        query = query.where(Job.method == method)
    if after is not None:
        query = query.where(id < after)
    return query.order_by(id.desc())


def store_tags(session: Session, job: Job) -> None:
    """Replace the stored tags of a job by its present ones."""
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
    """The (hash of the body, answer) stored for an Idempotency-Key, if any."""
    return session.execute(_ANSWER, {"tenant": tenant, "key": key}).one_or_none()


def store_answer(session: Session, answer: dict[str, Any]) -> bool:
    """Store the answer to an Idempotency-Key; `False` if another request has stored one before.

    Args:
        answer: the columns of `IdempotencyKey`.
    """
    stored = session.execute(_STORE_ANSWER[session.get_bind().dialect.name], answer)
    return stored.one_or_none() is not None


def attempts(session: Session, job_id: str) -> Sequence[Attempt]:
    """A job's attempts, oldest first."""
    return session.scalars(
        select(Attempt).where(Attempt.job_id == job_id).order_by(Attempt.number)
    ).all()


def evaluations(session: Session, job_id: str) -> Sequence[Evaluation]:
    """A job's evaluations by step; of repeated ones, those of the newest attempt."""
    rows = session.scalars(
        select(Evaluation)
        .where(Evaluation.job_id == job_id)
        .order_by(Evaluation.step, Evaluation.attempt, Evaluation.id)
    )
    return list({(row.step, row.subject): row for row in rows}.values())


def status_and_last_event(session: Session, job_id: str) -> tuple[str, int]:
    """A job's status, and the sequence number of its last event, read together."""
    status, next_event = session.execute(
        select(Job.status, Job.next_event).where(Job.id == job_id)
    ).one()
    return status, next_event - 1


def events(session: Session, job_id: str, after: int, limit: int) -> Sequence[Event]:
    """A job's events after a sequence number, in order; one more than `limit`."""
    return session.scalars(
        select(Event)
        .where(Event.job_id == job_id, Event.seq > after)
        .order_by(Event.seq)
        .limit(limit + 1)
    ).all()


def metrics(
    session: Session,
    job_id: str,
    names: Sequence[str],
    from_step: int,
    max_points: int | None = None,
) -> Iterable[Row[str, int, float, float]]:
    """(name, step, time, value) by name and step; the newest attempt comes last at each step.

    Args:
        names: the series to read; empty: all.
        max_points: approximate number of steps to keep, at least two for each series: the first and the
            last step and, for each series, the steps of its minimum and maximum in each of several
            equal stretches. With many series fewer steps are kept, to bound memory.
    """
    conditions = [Metric.job_id == job_id, Metric.step >= from_step]
    if names:
        conditions.append(Metric.name.in_(names))
    query = (
        select(Metric.name, Metric.step, Metric.time, Metric.value)
        .where(*conditions)
        .order_by(Metric.name, Metric.step, Metric.attempt)
    )
    if max_points is not None:
        counts = select(func.count(Metric.step.distinct()), func.count(Metric.name.distinct()))
        steps, series = session.execute(counts.where(*conditions)).one()
        max_points = min(max_points, max(2, _MAX_VALUES // max(1, series)))
        if steps > max_points:
            stretches = max(1, (max_points - 2) // (2 * series))
            query = query.where(Metric.step.in_(_thinned_steps(conditions, steps, stretches)))
    return session.execute(query)


def _thinned_steps(
    conditions: Sequence[ColumnElement[bool]], steps: int, stretches: int
) -> Select[int]:
    """Select the steps that thinned series keep, within the database: there may be millions of points.

    Args:
        conditions: select the points.
        steps: number of distinct steps of the points.
        stretches: number of stretches to divide the steps into.
    """
    # A value is ignored if a later attempt has one for the same step.
    later = func.lead(Metric.attempt).over(
        partition_by=(Metric.name, Metric.step), order_by=Metric.attempt
    )
    place = func.dense_rank().over(order_by=Metric.step)
    points = (
        select(Metric.name, Metric.step, Metric.value, later.label("later"), place.label("place"))
        .where(*conditions)
        .subquery()
    )
    # Stretch k begins after the first floor(k * steps / stretches) steps.
    stretch = (points.c.place * stretches - 1) // steps

    def rank(value: ColumnElement[float]) -> ColumnElement[int]:
        # Among equal values, the first.
        order = (value, points.c.step)
        return func.row_number().over(partition_by=(points.c.name, stretch), order_by=order)

    ranked = (
        select(
            points.c.step,
            points.c.place,
            rank(points.c.value.asc()).label("least"),
            rank(points.c.value.desc()).label("greatest"),
        )
        .where(points.c.later.is_(None))
        .subquery()
    )
    return select(ranked.c.step).where(
        or_(ranked.c.least == 1, ranked.c.greatest == 1, ranked.c.place.in_((1, steps)))
    )
