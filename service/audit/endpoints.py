"""`/v1/audit`: the audit log of an administrator's tenant."""

from typing import Annotated

from fastapi import APIRouter, Query

from service.api.auth import Admin
from service.api.pagination import Page, Window, page, window
from service.api.parameters import Moment, id_of
from service.api.transaction import ReadSession, Route
from service.audit import repository
from service.db.models import AuditEntry
from service.wire.access import AuditView

TokenId = id_of("tok", "is not the id of a token", "an id of `GET /v1/tokens`")

router = APIRouter(prefix="/v1/audit", tags=["audit"], route_class=Route)


@router.get("")
def list_audit(
    caller: Admin,
    session: ReadSession,
    window: Annotated[Window, window("aud")],
    token: Annotated[
        str | None, Query(description="Id of the token that was used."), TokenId
    ] = None,
    since: Annotated[Moment | None, Query(description="In UTC, unless an offset is given.")] = None,
) -> Page[AuditView]:
    """List requests that changed something or were refused with 403, newest first."""
    rows = repository.newest(session, caller.tenant, *window, token_id=token, since=since)
    return page(rows, window.limit, lambda row: _view(row[0], row[1]), lambda row: str(row[0].id))


def _view(entry: AuditEntry, token_name: str | None) -> AuditView:
    names = AuditView.model_fields.keys() - {"token_name"}
    return AuditView(token_name=token_name, **{name: getattr(entry, name) for name in names})
