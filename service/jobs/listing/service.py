"""The sorted list of jobs, and their summaries."""

import base64
import binascii
import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.orm import Session

from dasl_core.headlines import DIRECTED_METRICS, larger_is_better
from dasl_core.spec.base import problem
from dasl_core.spec.errors import closest
from service import ids
from service.api.problems import field_problem
from service.cluster import queue
from service.jobs.listing import repository
from service.jobs.listing.repository import (
    BEST,
    COLUMNS,
    NULLABLE,
    JobFilter,
    ListedJob,
    Order,
    Position,
)
from service.jobs.views import job_summary
from service.scheduling import repository as scheduling
from service.states import JobStatus
from service.wire.jobs import JobSummary

NEWEST = Order("created_at", descending=True)


def check_order(sort: str) -> str:
    """Check the parameter `sort`: a column, or `best.` and a metric; descending with `-`."""
    field = sort.removeprefix("-")
    if field in COLUMNS:
        return sort
    metric = field.removeprefix(BEST)
    if field.startswith(BEST) and larger_is_better(metric) is not None and metric.isascii():
        return sort
    known = [*COLUMNS, *(BEST + name for name in DIRECTED_METRICS)]
    raise problem(
        "unknown sort key" + closest(field, known),
        sort,
        f"one of {', '.join(known)}; descending with -",
    )


def cursor(order: Order, job: ListedJob) -> str:
    """Encode the position of a job in a list; by creation time, it is the job's id."""
    if order == NEWEST:
        return job.job.id
    value = job.value
    if order.field in NULLABLE and value is not None:
        value = value.isoformat()
    text = json.dumps([value, job.job.id], ensure_ascii=False)
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def position(order: Order, after: str) -> Position:
    """Decode a cursor of the same list.

    Raises:
        Problem: 422.
    """
    if order == NEWEST and ids.is_id("job", after):
        return Position(after, after)
    try:
        padded = after + "=" * (-len(after) % 4)
        value, id = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        if order == NEWEST or not (isinstance(id, str) and ids.is_id("job", id)):
            raise ValueError
        return Position(_value(order, value), id)
    except (ValueError, TypeError, OverflowError, RecursionError, binascii.Error) as error:
        raise field_problem(
            "after",
            "is not a position in this list, in the order of its `sort`",
            repr(after),
            "the `next` of the previous page",
        ) from error


def _value(order: Order, value: Any) -> Any:
    """Convert the value of a cursor, which a client may have changed.

    Raises:
        ValueError, TypeError: the value does not have the order's type.
    """
    if value is None:
        return None
    if order.field in NULLABLE:
        at = datetime.fromisoformat(value)
        return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).astimezone(UTC)
    expected: type | tuple[type, ...] = str
    if order.metric is not None:
        expected = (int, float)
    elif order.field == "priority":
        expected = int
    if not isinstance(value, expected) or isinstance(value, bool):
        raise TypeError
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError
    if isinstance(value, int) and not -(2**31) <= value < 2**31:
        raise ValueError
    if isinstance(value, str) and ("\0" in value or not value.isprintable()):
        raise ValueError
    return value


def page(
    session: Session, filter: JobFilter, sort: str, after: str | None, limit: int
) -> tuple[list[ListedJob], str | None]:
    """Return up to `limit` jobs, and the `after` of the next page; None on the last page.

    Raises:
        Problem: 422, `after` is not a position in this list.
    """
    order = Order(sort.removeprefix("-"), sort.startswith("-"))
    start = None if after is None else position(order, after)
    rows = repository.page(session, filter, order, start, limit)
    return rows[:limit], cursor(order, rows[limit - 1]) if len(rows) > limit else None


def summaries(session: Session, tenant: str, listed: Sequence[ListedJob]) -> list[JobSummary]:
    """Return summaries of jobs, with their best accuracies and why queued jobs wait."""
    best = repository.best(session, [item.job.id for item in listed])
    waits = {}
    if any(item.job.status == JobStatus.QUEUED for item in listed):
        waiting = queue.waiting(session, tenant, scheduling.snapshot(session))
        waits = {job.id: job for job in waiting}
    return [
        job_summary(item.job, item.dataset_name, best.get(item.job.id, {}), waits.get(item.job.id))
        for item in listed
    ]
