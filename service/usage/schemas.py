"""Request parameters and response model of the use of the cluster."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel
from sqlalchemy import Row

from dasl_core.spec.base import problem


def _in_utc(at: datetime | None) -> datetime | None:
    if at is None:
        return None
    try:
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except OverflowError as error:
        raise problem("is out of range", at, "a date, or a date and time") from error


Moment = Annotated[datetime | None, AfterValidator(_in_utc)]


class UsageGroup(BaseModel):
    """Use of the cluster by the jobs of a user or token, or with a value of a tag."""

    value: str | None
    """The id of the user or token, or the tag's value; null: jobs without one."""
    name: str | None
    """The name of the user or token; null: a tag, or removed."""
    jobs: int
    gpu_hours: float
    cpu_hours: float

    @classmethod
    def of(cls, row: Row[*tuple[Any, ...]]) -> UsageGroup:
        """Build the view of a row of the ledger."""
        value, name, jobs, gpu_seconds, cpu_seconds = row
        return cls(
            value=value,
            name=name,
            jobs=jobs,
            gpu_hours=gpu_seconds / 3600,
            cpu_hours=cpu_seconds / 3600,
        )


class UsageView(BaseModel):
    """Use of the cluster in whole hours, most first."""

    start: datetime
    end: datetime
    group_by: str
    data: list[UsageGroup]
    is_complete: bool
    """Whether all groups are in the answer."""
