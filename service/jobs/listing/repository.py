"""SQL of the list of jobs in any order, page by page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Float, Select, and_, cast, exists, func, literal, or_, select
from sqlalchemy.orm import Session, undefer

from dasl_core.headlines import ACCURACIES, larger_is_better
from dasl_core.vocabulary import TRAINED
from service.db.models import Dataset, Evaluation, Job, JobTag

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

    @property
    def is_indexed(self) -> bool:
        """Whether an index finds the newest matching jobs."""
        filtered = (self.dataset, self.created_after, self.text)
        return not self.ids and all(value is None for value in filtered)


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
    value, query = _ordered(filter, order)
    if after is not None:
        query = query.where(_behind(value, order, after))
    by_value, by_id = (
        (value.desc(), Job.id.desc()) if order.descending else (value.asc(), Job.id.asc())
    )
    if order.metric is not None or order.field in NULLABLE:
        by_value = by_value.nulls_last()  # only here, as PostgreSQL's indexes have another order
    # Rows are wide, so select and sort ids and values first.
    rows = session.execute(query.order_by(by_value, by_id).limit(limit + 1)).all()
    values: dict[str, Any] = dict(tuple(row) for row in rows)
    jobs = session.execute(
        select(Job, Dataset.name)
        .options(undefer(Job.submitted_by))
        .join(Dataset, Job.dataset_id == Dataset.id)
        .where(Job.id.in_(list(values)))
    )
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


def _ordered(filter: JobFilter, order: Order) -> tuple[ColumnElement[Any], Select[Any]]:
    """Return the sort value, and a query of the ids and values of matching jobs."""
    metric = order.metric
    if metric is None:
        value: ColumnElement[Any] = COLUMNS[order.field].expression
        return value, select(Job.id, value.label("value")).where(*_matching(filter))
    extreme = func.max if larger_is_better(metric) else func.min
    values = (
        select(Evaluation.job_id, extreme(_number(metric)).label("best"))
        .join(Job, Job.id == Evaluation.job_id)
        .where(Evaluation.subject.in_(TRAINED), Job.tenant == filter.tenant)
        .group_by(Evaluation.job_id)
        .subquery()
    )
    query = (
        select(Job.id, values.c.best)
        .outerjoin(values, values.c.job_id == Job.id)
        .where(*_matching(filter))
    )
    return values.c.best, query


def _number(metric: str) -> ColumnElement[float]:
    return cast(Evaluation.metrics[metric].as_string(), Float(53))


def _behind(value: ColumnElement[Any], order: Order, after: Position) -> ColumnElement[bool]:
    further = Job.id < after.id if order.descending else Job.id > after.id
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
        key, text = filter.tag
        conditions.append(_has_tag(JobTag.key == key, JobTag.value == text))
    if filter.experiment is not None:
        conditions.append(Job.experiment_id == filter.experiment)
    if filter.dataset is not None:
        named = or_(Dataset.id == filter.dataset, Dataset.name == filter.dataset)
        datasets = select(Dataset.id).where(Dataset.tenant == filter.tenant, named)
        conditions.append(Job.dataset_id.in_(datasets))
    if filter.created_after is not None:
        conditions.append(Job.created_at > filter.created_after)
    if filter.text is not None:
        text = filter.text
        tags = or_(
            *(
                text_column.icontains(text, autoescape=True)
                for text_column in (JobTag.key, JobTag.value)
            )
        )
        named = or_(
            *(text_column.icontains(text, autoescape=True) for text_column in (Job.id, Job.name))
        )
        conditions.append(or_(named, _has_tag(tags)))
    return conditions


def _has_tag(*conditions: ColumnElement[bool]) -> ColumnElement[bool]:
    return exists(literal(1)).where(JobTag.job_id == Job.id, *conditions)
