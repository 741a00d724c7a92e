"""`/v1/usage`: GPU- and CPU-hours by user, token or tag."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Query

from service.api.auth import Reader
from service.api.parameters import Moment
from service.api.problems import field_problem
from service.api.transaction import HeavyRoute, ReadSession
from service.ledger import repository
from service.wire.usage import UsageGroup, UsageView

router = APIRouter(prefix="/v1/usage", tags=["usage"], route_class=HeavyRoute)

_MOST = timedelta(days=366)
_DEFAULT = timedelta(days=30)
_MAX_GROUPS = 1000
_TAG = "tag:"


@router.get("")
def show_usage(
    caller: Reader,
    session: ReadSession,
    start: Annotated[
        Moment | None, Query(alias="from", description="In UTC; 30 days before to.")
    ] = None,
    end: Annotated[
        Moment | None, Query(alias="to", description="In UTC; not included; now.")
    ] = None,
    group_by: Annotated[
        str,
        Query(max_length=100, pattern=r"^[^\x00]*$", description="`user`, `token` or `tag:KEY`."),
    ] = "token",
) -> UsageView:
    """Show GPU- and CPU-hours: of the tenant for an administrator, otherwise of all tokens of the caller's user."""
    key = group_by.removeprefix(_TAG) if group_by.startswith(_TAG) else None
    if group_by not in ("user", "token") and not key:
        raise field_problem("group_by", "unknown group", group_by, "user, token or tag:KEY")
    end = end or datetime.now(UTC)
    if start is None and end - datetime.min.replace(tzinfo=UTC) < _DEFAULT:
        raise field_problem("to", "is out of range", str(end), "a date of this century")
    start = start or end - _DEFAULT
    if not timedelta() < end - start <= _MOST:
        expected = f"a time before `to`, by {_MOST.days} days at most"
        raise field_problem("from", "is not in the range", str(start), expected)
    account_id = None if caller.may("admin") else caller.account_id
    most = _MAX_GROUPS + 1
    rows = repository.by_group(session, caller.tenant, account_id, start, end, most, group_by, key)
    return UsageView(
        start=start,
        end=end,
        group_by=group_by,
        data=[
            UsageGroup(
                value=value,
                name=name,
                jobs=jobs,
                gpu_hours=gpu_seconds / 3600,
                cpu_hours=cpu_seconds / 3600,
            )
            for value, name, jobs, gpu_seconds, cpu_seconds in rows[:_MAX_GROUPS]
        ],
        is_complete=len(rows) <= _MAX_GROUPS,
    )
