"""SQL of API tokens."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.models import Token


def find_by_hash(session: Session, hash: str) -> Token | None:
    """The token with this hash, revoked or not."""
    return session.scalars(select(Token).where(Token.hash == hash)).one_or_none()


def get(session: Session, tenant: str, token_id: str) -> Token | None:
    """A tenant's token."""
    return session.scalars(
        select(Token).where(Token.id == token_id, Token.tenant == tenant)
    ).one_or_none()


def newest(session: Session, tenant: str, after: str | None, limit: int) -> Sequence[Token]:
    """A tenant's tokens, newest first, revoked ones included; one more than `limit`."""
    query = select(Token).where(Token.tenant == tenant).order_by(Token.id.desc())
    if after is not None:
        query = query.where(Token.id < after)
    return session.scalars(query.limit(limit + 1)).all()
