"""Checks of parameters and fields that several endpoints have: ids and times."""

from datetime import UTC, datetime
from typing import Annotated

from fastapi import Query
from pydantic import AfterValidator, BeforeValidator

from dasl_core.spec.base import problem
from service.ids import Prefix, is_id


def id_of(kind: Prefix, message: str, expected: str) -> AfterValidator:
    """Return the check that a parameter has the form of an id of this kind, or none."""

    def check(value: str | None) -> str | None:
        if value is not None and not is_id(kind, value):
            raise problem(message, value, expected)
        return value

    return AfterValidator(check)


def _in_utc(at: datetime) -> datetime:
    try:
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except OverflowError as error:
        raise problem("is out of range", at.isoformat(), "a date, or a date and time") from error


def _no_number(at: object) -> object:
    """Refuse seconds since 1970, which pydantic would take, and which no document of the API names."""
    try:
        float(at)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return at
    raise problem("is a number", at, "a date, or a date and time")


JobId = Annotated[
    str,
    Query(max_length=40),
    id_of("job", "is not the id of a job", "an `id` of GET /v1/jobs"),
]
Moment = Annotated[datetime, BeforeValidator(_no_number), AfterValidator(_in_utc)]
"""A time in UTC, unless it is given with an offset."""
