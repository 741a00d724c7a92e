"""SQL for metric points: reading, and thinning of old ones."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Row, bindparam, delete, func, or_, select, text, tuple_, update
from sqlalchemy.orm import Session

from service.db.models import UNTHINNED, Job, Metric
from service.metrics.downsampling import steps_to_keep
from service.metrics.thinning import FULL_STEPS, Section
from service.states import TERMINAL, JobStatus

# Limit of one response.
_MAX_VALUES = 1_000_000
# Number of rows in memory while a response is built.
_ROWS_AT_ONCE = 1000
# SQLite takes 32,766 parameters, PostgreSQL 65,535.
_MOST_PARAMETERS = 10_000
_LOSS = "loss"


def points(
    session: Session,
    job_id: str,
    names: Sequence[str],
    from_step: int,
    max_points: int | None = None,
    to_step: int | None = None,
) -> Iterable[Row[str, int, float, float]]:
    """Return (name, step, time, value) rows by name and step; at each step the newest attempt is last.

    Args:
        names: the series to read; empty: all.
        max_points: approximate number of steps to keep, at least two for each series: the first and the
            last step and, for each series, the steps of its minimum and maximum in each of several
            equal intervals. With many series fewer steps are kept, to bound memory.
        to_step: the last step to read; None: all.
    """
    conditions = [Metric.job_id == job_id, Metric.step >= from_step]
    if to_step is not None:
        conditions.append(Metric.step <= to_step)
    if names:
        conditions.append(Metric.name.in_(names))
    order = (Metric.name, Metric.step, Metric.attempt)
    query = (
        select(Metric.name, Metric.step, Metric.time, Metric.value)
        .where(*conditions)
        .order_by(*order)
        .execution_options(yield_per=_ROWS_AT_ONCE)
    )
    if max_points is None:
        return session.execute(query)
    summary = select(
        func.count(Metric.step.distinct()),
        func.count(Metric.name.distinct()),
        func.min(Metric.step),
        func.max(Metric.step),
    )
    steps, series, first, last = session.execute(summary.where(*conditions)).one()
    max_points = min(max_points, max(2, _MAX_VALUES // max(1, series)))
    if steps <= max_points:
        return session.execute(query)
    # A pass over thinned rows, in the order of the primary key, is faster than ranking in SQL. The ORM would double its
    # time.
    intervals = max(1, (max_points - 2) // (2 * series))
    values = select(Metric.name, Metric.step, Metric.value).where(*conditions).order_by(*order)
    options = {"yield_per": _ROWS_AT_ONCE}
    rows = session.connection().execute(values, execution_options=options)
    kept = steps_to_keep(rows, first, last, intervals)
    if len(kept) <= _MOST_PARAMETERS:
        return session.execute(query.where(Metric.step.in_(kept)))
    return (row for row in session.execute(query) if row[1] in kept)


@dataclass(frozen=True)
class Thinning:
    """Progress of thinning the metrics of a job."""

    job_id: str
    ended: bool
    """Whether the job will report no more points."""
    attempt: int
    """The newest attempt whose points are thinned."""
    step: int
    """The last step of that attempt for which the points are thinned."""


@dataclass(frozen=True)
class Reported:
    """The first and the last step whose loss an attempt reported."""

    first: int
    last: int


# Built once, because each round needs them and SQLAlchemy takes longer to build a statement than to run it.
_UNTHINNED = (
    select(Job.id, Job.status, Job.thinned_attempt, Job.thinned_step)
    .where(text(UNTHINNED), Job.id > bindparam("after"))
    .order_by(Job.id)
    .limit(bindparam("limit"))
)
_POINTS = (
    select(Metric.step)
    .where(Metric.job_id == bindparam("job_id"), Metric.name == bindparam("name"))
    .limit(bindparam("limit"))
    .subquery()
)
_FIRST = select(func.min(Metric.step)).where(
    Metric.job_id == bindparam("job_id"), Metric.name == bindparam("name")
)
_COUNT_POINTS = select(func.count(), _FIRST.scalar_subquery()).select_from(_POINTS)
# Greater than every step.
_BEYOND = 2**63
_NEWEST_STEP = select(func.max(Metric.step)).where(
    Metric.job_id == bindparam("job_id"), Metric.name == _LOSS
)


def unthinned(session: Session, after: str, limit: int) -> list[Thinning]:
    """Return jobs after the id `after` whose metrics may have to be thinned, sorted by id."""
    rows = session.execute(_UNTHINNED, {"after": after, "limit": limit})
    return [
        Thinning(id, JobStatus(status) in TERMINAL, attempt, step)
        for id, status, attempt, step in rows
    ]


def gap_around(
    session: Session, job_id: str, names: Sequence[str], step: int, least: int
) -> tuple[int, int]:
    """Return how many steps up to `step` and how many after it have no point of the series.

    Once one of them is at most `least`, the rest of the series is not asked. Without a point after `step`: 0 steps.
    """
    before, after = 0, _BEYOND
    for name in names:
        of_series = (Metric.job_id == job_id, Metric.name == name)
        last = session.scalar(select(func.max(Metric.step)).where(*of_series, Metric.step <= step))
        first = session.scalar(select(func.min(Metric.step)).where(*of_series, Metric.step > step))
        before = max(before, last or 0)
        after = min(after, first or _BEYOND)
        if step - before <= least or after - 1 - step <= least:
            break
    return step - before, (0 if after == _BEYOND else after - 1 - step)


def newest_step(session: Session, job_id: str) -> int:
    """Return the greatest step whose loss any attempt reported; 0 if there is none."""
    return session.scalar(_NEWEST_STEP, {"job_id": job_id}) or 0


def reported(session: Session, job_id: str) -> dict[int, Reported]:
    """Return the steps whose loss each attempt reported, by its number."""
    rows = session.execute(
        select(Metric.attempt, func.min(Metric.step), func.max(Metric.step))
        .where(Metric.job_id == job_id, Metric.name == _LOSS)
        .group_by(Metric.attempt)
    )
    return {attempt: Reported(first, last) for attempt, first, last in rows}


def names(session: Session, job_id: str) -> list[str]:
    """Return the names of a job's series, each by a search in the primary key, independent of its length."""
    found: list[str] = []
    query = select(func.min(Metric.name)).where(Metric.job_id == job_id)
    name = session.scalar(query)
    while name is not None:
        found.append(name)
        name = session.scalar(query.where(Metric.name > name))
    return found


def long_series(session: Session, job_id: str, names: Sequence[str]) -> dict[str, int]:
    """Return the series with so many points that old ones are thinned, each with its first step."""
    counted = {"job_id": job_id, "limit": FULL_STEPS + 1}
    rows = (
        (name, session.execute(_COUNT_POINTS, counted | {"name": name}).one()) for name in names
    )
    return {name: first for name, (number, first) in rows if number > FULL_STEPS}


def thin(
    session: Session, job_id: str, series: Mapping[str, int], section: Section, attempt: int
) -> None:
    """Remove the points of a section except each bucket's minimum and maximum; among equal values, the first stays.

    Of the points of a step that of the newest attempt counts. The first step of a series stays, and the last step of
    each attempt's loss, which `service.runs.repository.last_step` reads. Points of attempts after `attempt` stay.

    Args:
        series: as from `long_series`.
    """
    in_section = (
        Metric.job_id == job_id,
        Metric.name.in_(series),
        Metric.step >= section.start,
        Metric.step < section.stop,
        Metric.attempt <= attempt,
    )
    of_step, row_number = (Metric.name, Metric.step), func.row_number
    age = row_number().over(partition_by=of_step, order_by=Metric.attempt.desc()).label("age")
    points = select(*of_step, Metric.value, age).where(*in_section).subquery()
    bucket = (points.c.name, points.c.step // section.width)
    orders = (points.c.value, points.c.step), (points.c.value.desc(), points.c.step)
    low, high = (row_number().over(partition_by=bucket, order_by=order) for order in orders)
    ranked = (
        select(points.c.name, points.c.step, low.label("low"), high.label("high"))
        .where(points.c.age == 1)
        .subquery()
    )
    between = select(ranked.c.name, ranked.c.step).where(ranked.c.low > 1, ranked.c.high > 1)
    lasts = [each.last for each in reported(session, job_id).values()]
    session.execute(
        delete(Metric)
        .where(
            *in_section,
            tuple_(*of_step).in_(between),
            tuple_(*of_step).not_in(list(series.items())),
            or_(Metric.name != _LOSS, Metric.step.not_in(lasts)),
        )
        .execution_options(synchronize_session=False)
    )


def save_thinning(session: Session, thinning: Thinning, *, complete: bool) -> None:
    """Record the progress of a job's thinning, and whether it is complete."""
    session.execute(
        update(Job)
        .where(Job.id == thinning.job_id)
        .values(thinned_attempt=thinning.attempt, thinned_step=thinning.step, thinned=complete)
    )
