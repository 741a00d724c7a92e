"""`/v1/usage`: GPU- and CPU-hours by token."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Query

from service.api.auth import Reader
from service.api.problems import field_problem
from service.api.transaction import ReadSession, Route
from service.ledger import repository
from service.usage.schemas import Moment, TokenUsage, UsageView

router = APIRouter(prefix="/v1/usage", tags=["usage"], route_class=Route)

_MOST = timedelta(days=366)
_DEFAULT = timedelta(days=30)


@router.get("")
def show_usage(
    caller: Reader,
    session: ReadSession,
    start: Annotated[Moment, Query(alias="from", description="In UTC; 30 days before to.")] = None,
    end: Annotated[Moment, Query(alias="to", description="In UTC; not included; now.")] = None,
) -> UsageView:
    """Show GPU- and CPU-hours by token: of the tenant for an administrator, else of the caller's token."""
    end = end or datetime.now(UTC)
    if start is None and end - datetime.min.replace(tzinfo=UTC) < _DEFAULT:
        raise field_problem("to", "is out of range", str(end), "a date of this century")
    start = start or end - _DEFAULT
    if not timedelta() < end - start <= _MOST:
        expected = f"a time before `to`, by {_MOST.days} days at most"
        raise field_problem("from", "is not in the range", str(start), expected)
    token_id = None if caller.may("admin") else caller.token_id
    rows = repository.by_token(session, caller.tenant, token_id, start, end)
    return UsageView(start=start, end=end, data=[TokenUsage.of(row) for row in rows])
