"""The audit log: a row for each request that changed something or was refused with 403."""

import re
from datetime import UTC, datetime
from urllib.parse import quote

from fastapi import Request
from sqlalchemy.orm import Session

from service import ids
from service.api import repository
from service.api.json_body import client_address

_CHANGES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_LONGEST_PATH = 500
# Do not store a token that a client sent in place of an id.
_TOKEN = re.compile(r"dasl_[\w-]{20,}")


def record_change(session: Session, request: Request) -> None:
    """Add a row in the transaction of a user's successful request.

    Reports of workers are not added, because they are in the events of their job.
    """
    caller = getattr(request.state, "caller", None)
    if caller is not None and request.method in _CHANGES:
        status = getattr(request.scope.get("route"), "status_code", None) or 200
        record(session, request, caller.tenant, caller.token_id, caller.user_id, status)


def record(
    session: Session,
    request: Request,
    tenant: str,
    token_id: str,
    user_id: str | None,
    status: int,
) -> None:
    """Add a row, without the request's body, query and headers."""
    row = {
        "id": ids.new_id("aud"),
        "at": datetime.now(UTC),
        "tenant": tenant,
        "token_id": token_id,
        "user_id": user_id,
        "method": request.method,
        # Quote the path, which may contain characters that no database stores.
        "path": _TOKEN.sub("dasl_...", quote(request.scope["path"]))[:_LONGEST_PATH],
        "status": status,
        "address": client_address(request.scope),
    }
    repository.add_audit_entry(session, row)
