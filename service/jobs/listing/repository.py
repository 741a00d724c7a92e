"""SQL of the list of jobs in any order, page by page."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Float,
    Select,
    and_,
    cast,
    exists,
    func,
    literal,
    or_,
    select,
    union_all,
)
from sqlalchemy.orm import Session

from dasl_core.headlines import ACCURACIES, larger_is_better
from dasl_core.vocabulary import TRAINED
from service.db.models import Dataset, Evaluation, Job, JobTag
from service.jobs.repository import with_dataset

BEST = "best."
"""Prefix of orders by the best value among the evaluations of the trained network."""
COLUMNS = {
    "created_at": Job.id,  # ids are ordered by time of creation
    "finished_at": Job.finished_at,
    "method": Job.method,
    "name": Job.name,
    "priority": Job.priority,
    "started_at": Job.started_at,
    "status": Job.status,
}
"""Columns by which jobs can be ordered."""
NULLABLE = ("finished_at", "started_at")


@dataclass(frozen=True)
class JobFilter:
    """The jobs of a tenant to list."""

    tenant: str
    ids: Sequence[str] = ()
    statuses: Sequence[str] = ()
    method: str | None = None
    tag: tuple[str, str] | None = None
    experiment: str | None = None
    dataset: str | None = None
    """Id or name."""
    created_after: datetime | None = None
    text: str | None = None
    """Part of the id, the name, or a key or value of a tag; case-insensitive."""


@dataclass(frozen=True)
class Order:
    """An order of jobs: by a value, then by id in the same direction; jobs without the value come last."""

    field: str
    descending: bool

    @property
    def metric(self) -> str | None:
        """The metric by whose best value jobs are ordered."""
        return self.field.removeprefix(BEST) if self.field.startswith(BEST) else None


@dataclass(frozen=True)
class Position:
    """The last job of a page: its value and its id."""

    value: Any
    id: str


@dataclass(frozen=True)
class ListedJob:
    """A job of the list with the name of its data set and its sort value."""

    job: Job
    dataset_name: str
    value: Any = field(default=None)


def page(
    session: Session, filter: JobFilter, order: Order, after: Position | None, limit: int
) -> list[ListedJob]:
    """Return up to `limit` + 1 jobs in an order, from the one after a position."""
    # Rows are wide, so select and sort ids and values first. An index orders ids within a status, so run one query
    # per status.
    queries = [
        _first(replace(filter, statuses=[status] if status else ()), order, after, limit + 1)
        for status in dict.fromkeys(filter.statuses) or (None,)
    ]
    query = queries[0]
    if len(queries) > 1:
        several = union_all(*(select(part.subquery()) for part in queries)).subquery()
        by = _by(several.c.value, several.c.id, order)
        query = select(several.c.id, several.c.value).order_by(*by).limit(limit + 1)
    values: dict[str, Any] = dict(tuple(row) for row in session.execute(query))
    jobs = session.execute(with_dataset(filter.tenant).where(Job.id.in_(list(values))))
    listed = {job.id: ListedJob(job, name, values[job.id]) for job, name in jobs}
    return [listed[id] for id in values if id in listed]


def best(session: Session, job_ids: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the best value of each accuracy in the evaluations of the trained network, by job."""
    names = [accuracy.metric for accuracy in ACCURACIES]
    rows = session.execute(
        select(Evaluation.job_id, *(func.max(_number(name)) for name in names))
        .where(Evaluation.job_id.in_(job_ids), Evaluation.subject.in_(TRAINED))
        .group_by(Evaluation.job_id)
    )
    return {
        row[0]: {n: v for n, v in zip(names, row[1:], strict=True) if v is not None} for row in rows
    }


def _first(filter: JobFilter, order: Order, after: Position | None, limit: int) -> Select[Any]:
    """Select the ids and sort values of the first matching jobs behind a position."""
    if (metric := order.metric) is None:
        value: ColumnElement[Any] = COLUMNS[order.field].expression
        query = select(Job.id, value.label("value"))
    else:
        extreme = func.max if larger_is_better(metric) else func.min
        values = (
            select(Evaluation.job_id, extreme(_number(metric)).label("best"))
            .join(Job, Job.id == Evaluation.job_id)
            .where(Evaluation.subject.in_(TRAINED), Job.tenant == filter.tenant)
            .group_by(Evaluation.job_id)
            .subquery()
        )
        value = values.c.best
        query = select(Job.id, value.label("value")).outerjoin(values, values.c.job_id == Job.id)
    query = query.where(*_matching(filter))
    if after is not None:
        query = query.where(_behind(value, order, after))
    return query.order_by(*_by(value, Job.id, order)).limit(limit)


def _by(
    value: ColumnElement[Any], id: Any, order: Order
) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
    by_value, by_id = (value.desc(), id.desc()) if order.descending else (value.asc(), id.asc())
    if order.metric is not None or order.field in NULLABLE:
        by_value = by_value.nulls_last()  # only here, as PostgreSQL's indexes have another order
    return by_value, by_id


def _number(metric: str) -> ColumnElement[float]:
    return cast(Evaluation.metrics[metric].as_string(), Float(53))


def _behind(value: ColumnElement[Any], order: Order, after: Position) -> ColumnElement[bool]:
    further = Job.id < after.id if order.descending else Job.id > after.id
    if order.field == "created_at":
        return further
    if after.value is None:
        return and_(value.is_(None), further)
    beyond = value < after.value if order.descending else value > after.value
    return or_(beyond, and_(value == after.value, further), value.is_(None))


def _matching(filter: JobFilter) -> list[ColumnElement[bool]]:
    conditions = [Job.tenant == filter.tenant, Job.deleted_at.is_(None)]
    if filter.ids:
        conditions.append(Job.id.in_(filter.ids))
    if filter.statuses:
        conditions.append(Job.status.in_(filter.statuses))
    if filter.method is not None:
        conditions.append(Job.method == filter.method)
    if filter.tag is not None:
        is_tag = JobTag.key == filter.tag[0], JobTag.value == filter.tag[1]
        tagged = select(JobTag.job_id).where(JobTag.tenant == filter.tenant, *is_tag)
        conditions.append(Job.id.in_(tagged))
    if filter.experiment is not None:
        conditions.append(Job.experiment_id == filter.experiment)
    if filter.dataset is not None:
        named = or_(Dataset.id == filter.dataset, Dataset.name == filter.dataset)
        datasets = select(Dataset.id).where(Dataset.tenant == filter.tenant, named)
        conditions.append(Job.dataset_id.in_(datasets))
    if filter.created_after is not None:
        conditions.append(Job.created_at > filter.created_after)
    if filter.text is not None:
        in_job, in_tag = (
            or_(*(column.icontains(filter.text, autoescape=True) for column in columns))
            for columns in ((Job.id, Job.name), (JobTag.key, JobTag.value))
        )
        conditions.append(or_(in_job, exists(literal(1)).where(JobTag.job_id == Job.id, in_tag)))
    return conditions
