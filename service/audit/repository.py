"""SQL of the audit log, which is append-only."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Row, select
from sqlalchemy.orm import Session

from service.db.models import AuditEntry, Token


def newest(
    session: Session,
    tenant: str,
    after: str | None,
    limit: int,
    *,
    token_id: str | None,
    since: datetime | None,
) -> Sequence[Row[AuditEntry, str | None]]:
    """A tenant's entries with the name of their token, newest first; one more than `limit`."""
    query = (
        select(AuditEntry, Token.name)
        .outerjoin(Token, AuditEntry.token_id == Token.id)
        .where(AuditEntry.tenant == tenant)
        .order_by(AuditEntry.id.desc())
    )
    if token_id is not None:
        query = query.where(AuditEntry.token_id == token_id)
    if since is not None:
        query = query.where(AuditEntry.at >= since)
    if after is not None:
        query = query.where(AuditEntry.id < after)
    return session.execute(query.limit(limit + 1)).all()
