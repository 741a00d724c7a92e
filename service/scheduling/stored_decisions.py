"""The dispatcher's decisions on the first jobs of the queue, as it stores them for the API."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from pydantic import BaseModel, TypeAdapter
from sqlalchemy.orm import Session

from service.scheduling import repository
from service.scheduling.admission import Decision
from service.wire.cluster import WaitsFor


class StoredDecision(BaseModel):
    """Why a job waits; `waits_for` is null if it starts now."""

    job: str
    waits_for: WaitsFor | None
    reason: str
    starts_by: datetime | None


_STORED = TypeAdapter(list[StoredDecision])


def to_store(decisions: Sequence[Decision]) -> list[dict[str, Any]]:
    """Convert decisions, in the order of the queue, to what `scheduling.repository.save_decisions` stores."""
    stored = [
        StoredDecision(
            job=decision.job.job_id,
            waits_for=decision.waits_for,
            reason=decision.message,
            starts_by=_whole_minute(decision.starts_by),
        )
        for decision in decisions
    ]
    found: list[dict[str, Any]] = _STORED.dump_python(stored, mode="json")
    return found


def _whole_minute(at: datetime | None) -> datetime | None:
    """Round up to a minute: while a job is stopping, the time changes in each round, and each change is stored."""
    if at is None:
        return None
    return at + timedelta(seconds=-at.timestamp() % 60)


def load(session: Session) -> dict[str, StoredDecision]:
    """Return the stored decisions by the id of the job, in the order of the queue; they may be a second old."""
    stored = _STORED.validate_python(repository.decisions(session))
    return {decision.job: decision for decision in stored}
