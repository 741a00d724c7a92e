"""Request parameters of the use of the cluster."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator

from dasl_core.spec.base import problem


def _in_utc(at: datetime | None) -> datetime | None:
    if at is None:
        return None
    try:
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except OverflowError as error:
        raise problem("is out of range", at, "a date, or a date and time") from error


Moment = Annotated[datetime | None, AfterValidator(_in_utc)]
