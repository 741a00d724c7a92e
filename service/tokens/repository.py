"""SQL of API tokens."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.db.models import Job, Token
from service.states import JobStatus


def add(session: Session, token: Token) -> None:
    """Store a new token."""
    session.add(token)
    session.flush()


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


def lock_queue_limit(session: Session, token_id: str) -> int | None:
    """Return how many of a token's jobs may be queued; `None`: no limit.

    If there is a limit, the row stays locked until the transaction ends: concurrent submissions with
    the token are serialized, so two of them cannot both take the last place.
    """
    return session.scalar(
        select(Token.max_queued_jobs)
        .where(Token.id == token_id, Token.max_queued_jobs.is_not(None))
        .with_for_update()
    )


def count_queued(session: Session, token_id: str) -> int:
    """How many jobs of a token are queued."""
    query = select(func.count()).where(Job.token_id == token_id, Job.status == JobStatus.QUEUED)
    return session.execute(query).scalar_one()
