"""SQL for the reports of workers."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from service.db.models import Attempt, Evaluation, Event

_COLUMNS = "job_id, attempt, name, step, time, value"
_NEWEST_COUNTS = (
    "ON CONFLICT (job_id, name, step, attempt) "
    "DO UPDATE SET time = excluded.time, value = excluded.value"
)
# A single statement for any number of points: otherwise PostgreSQL's driver would send one per point.
_STORE = {
    "postgresql": text(
        f"INSERT INTO metrics ({_COLUMNS}) SELECT :job_id, :attempt, point.* FROM unnest("
        "CAST(:names AS text[]), CAST(:steps AS bigint[]), "
        "CAST(:times AS float8[]), CAST(:values AS float8[])"
        f") AS point {_NEWEST_COUNTS}"
    ),
    "sqlite": text(
        f"INSERT INTO metrics ({_COLUMNS}) "
        f"VALUES (:job_id, :attempt, :name, :step, :time, :value) {_NEWEST_COUNTS}"
    ),
}


def add_metrics(
    session: Session,
    job_id: str,
    attempt: int,
    points: Mapping[tuple[str, int], tuple[float, float]],
) -> None:
    """Store metric points; a new value replaces the stored value of the same name, step and attempt.

    Args:
        points: (time, value) by name and step.
    """
    dialect = session.get_bind().dialect.name
    values: Any
    if dialect == "postgresql":
        values = {
            "job_id": job_id,
            "attempt": attempt,
            "names": [name for name, _ in points],
            "steps": [step for _, step in points],
            "times": [time for time, _ in points.values()],
            "values": [value for _, value in points.values()],
        }
    else:
        values = [
            {
                "job_id": job_id,
                "attempt": attempt,
                "name": name,
                "step": step,
                "time": time,
                "value": value,
            }
            for (name, step), (time, value) in points.items()
        ]
    session.execute(_STORE[dialect], values)


def evaluation(
    session: Session, job_id: str, attempt: int, step: int, subject: str
) -> Evaluation | None:
    """Return an attempt's stored evaluation of a subject at a step, if any."""
    of = {"job_id": job_id, "attempt": attempt, "step": step, "subject": subject}
    return session.scalars(select(Evaluation).filter_by(**of)).one_or_none()


def current_attempt(session: Session, job_id: str, number: int) -> Attempt:
    """Return an existing attempt, refreshed from the database."""
    return session.get_one(Attempt, (job_id, number), populate_existing=True)


def newest_event(session: Session, job_id: str, type: str) -> Event | None:
    """Return a job's newest event of one type."""
    return session.scalars(
        select(Event)
        .where(Event.job_id == job_id, Event.type == type)
        .order_by(Event.seq.desc())
        .limit(1)
    ).one_or_none()
