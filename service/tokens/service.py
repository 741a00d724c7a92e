"""Making and revoking API tokens."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy.orm import Session

from service import auth, ids
from service.db.models import Token
from service.problems import not_found
from service.tokens import repository


def create(
    session: Session, *, tenant: str, name: str, scopes: Sequence[auth.Scope]
) -> tuple[Token, str]:
    """A new token of a tenant, and its text, which cannot be had again."""
    text, hashed = auth.new_token()
    token = Token(
        id=ids.new_id("tok"),
        tenant=tenant,
        name=name,
        hash=hashed,
        scopes=sorted(set(scopes)),
        created_at=datetime.now(UTC),
    )
    session.add(token)
    session.flush()
    return token, text


def revoke(session: Session, tenant: str, token_id: str) -> None:
    """End a token; again is no change.

    Raises:
        Problem: 404, the tenant has no such token.
    """
    token = repository.get(session, tenant, token_id) if ids.is_id("tok", token_id) else None
    if token is None:
        raise not_found("token", token_id)
    token.revoked_at = token.revoked_at or datetime.now(UTC)
