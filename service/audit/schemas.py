"""Request parameters of the audit log."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator

from dasl_core.spec.base import problem
from service.ids import is_id


def _in_utc(since: datetime | None) -> datetime | None:
    if since is None:
        return None
    try:
        return since.replace(tzinfo=UTC) if since.tzinfo is None else since.astimezone(UTC)
    except OverflowError as error:
        raise problem("is out of range", since, "a date, or a date and time") from error


def _of_a_token(token_id: str | None) -> str | None:
    if token_id is not None and not is_id("tok", token_id):
        raise problem("is not the id of a token", token_id, "an id of `GET /v1/tokens`")
    return token_id


Since = Annotated[datetime | None, AfterValidator(_in_utc)]
TokenId = Annotated[str | None, AfterValidator(_of_a_token)]
