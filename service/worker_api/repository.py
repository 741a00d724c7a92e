"""SQL of what workers report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from service.db.models import Evaluation, Metric


def add_metrics(session: Session, rows: Sequence[dict[str, Any]]) -> None:
    """Store points; a point that was stored before takes its new value."""
    on_postgresql = session.get_bind().dialect.name == "postgresql"
    statement = postgresql.insert(Metric) if on_postgresql else sqlite.insert(Metric)
    statement = statement.on_conflict_do_update(
        index_elements=["job_id", "name", "step", "attempt"],
        set_={"time": statement.excluded.time, "value": statement.excluded.value},
    )
    session.execute(statement, list(rows))


def evaluation(
    session: Session, job_id: str, attempt: int, step: int, subject: str
) -> Evaluation | None:
    """What an attempt already reported of a subject at a step."""
    return session.scalars(
        select(Evaluation).where(
            Evaluation.job_id == job_id,
            Evaluation.attempt == attempt,
            Evaluation.step == step,
            Evaluation.subject == subject,
        )
    ).one_or_none()
