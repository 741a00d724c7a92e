"""Create, change and revoke API tokens, and enforce their queue quota."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy.orm import Session

from service import credentials, ids
from service.api.problems import Problem, not_found
from service.db.models import Token
from service.tokens import repository
from service.tokens.schemas import DEFAULT_MAX_QUEUED_JOBS, Quotas


def create(
    session: Session,
    *,
    tenant: str,
    name: str,
    scopes: Sequence[credentials.Scope],
    quotas: Quotas | None = None,
) -> tuple[Token, str]:
    """Create a token; returns its row and its text, which is not stored."""
    text, hashed = credentials.new_token()
    quotas = quotas or Quotas(max_queued_jobs=DEFAULT_MAX_QUEUED_JOBS)
    token = Token(
        id=ids.new_id("tok"),
        tenant=tenant,
        name=name,
        hash=hashed,
        scopes=sorted(set(scopes)),
        **{quota: getattr(quotas, quota) for quota in Quotas.model_fields},
        created_at=datetime.now(UTC),
    )
    repository.add(session, token)
    return token, text


def change(session: Session, tenant: str, token_id: str, quotas: Quotas) -> Token:
    """Set the quotas that the request names. Running jobs continue even above the new limit.

    Raises:
        Problem: 404, the tenant has no such token.
    """
    token = _find(session, tenant, token_id)
    for quota in quotas.model_fields_set:
        setattr(token, quota, getattr(quotas, quota))
    session.flush()
    return token


def check_queue(session: Session, token_id: str, limit: int | None) -> None:
    """Check that a token may have one more job in the queue.

    Args:
        limit: from `repository.lock_queue_limit` in the same transaction.

    Raises:
        Problem: 429, the queue quota is exhausted.
    """
    if limit is None:
        return
    queued = repository.count_queued(session, token_id)
    if queued >= limit:
        raise Problem(
            429,
            "quota-exceeded",
            f"max_queued_jobs of this token is {limit}, and {queued} of its jobs are queued; "
            "submit again when one has started",
            extra={"quota": "max_queued_jobs", "limit": limit, "used": queued},
        )


def revoke(session: Session, tenant: str, token_id: str) -> None:
    """Revoke a token; a repetition changes nothing.

    Raises:
        Problem: 404, the tenant has no such token.
    """
    token = _find(session, tenant, token_id)
    token.revoked_at = token.revoked_at or datetime.now(UTC)


def _find(session: Session, tenant: str, token_id: str) -> Token:
    token = repository.get(session, tenant, token_id) if ids.is_id("tok", token_id) else None
    if token is None:
        raise not_found("token", token_id)
    return token
