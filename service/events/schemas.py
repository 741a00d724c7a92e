"""Response models of the events of a tenant."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Self

from pydantic import BaseModel

from service.db.models import Event
from service.events.levels import Level, level_of


class EventEntry(BaseModel):
    """An event of one of the tenant's jobs; `id` orders the events of all jobs, `seq` those of its job."""

    id: int
    job_id: str
    job_name: str
    seq: int
    at: datetime
    type: str
    level: Level
    message: str
    data: dict[str, Any]

    @classmethod
    def of(cls, event: Event, job_name: str) -> Self:
        """Build the entry of a row that has a position."""
        assert event.position is not None
        return cls(
            id=event.position,
            job_id=event.job_id,
            job_name=job_name,
            seq=event.seq,
            at=event.at,
            type=event.type,
            level=level_of(event.type, event.data),
            message=event.message,
            data=event.data,
        )
