"""SQL of the page's sessions and of login codes."""

from datetime import datetime

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from service.db.models import LoginCode, WebSession


def add(session: Session, row: WebSession | LoginCode, *, keep: int) -> None:
    """Store a session or code; remove expired ones of all tokens, and the token's oldest ones beyond `keep`."""
    kind = type(row)
    session.execute(delete(kind).where(kind.expires_at <= row.created_at))
    newest = (
        select(kind.hash)
        .where(kind.token_id == row.token_id)
        .order_by(kind.created_at.desc(), kind.hash)
        .limit(keep - 1)
    )
    session.execute(delete(kind).where(kind.token_id == row.token_id, kind.hash.not_in(newest)))
    session.add(row)
    session.flush()


def remove(session: Session, hash: str) -> None:
    session.execute(delete(WebSession).where(WebSession.hash == hash))


def token_of_code(session: Session, hash: str, now: datetime) -> str | None:
    """Return the id of the token of an unexpired code."""
    query = select(LoginCode.token_id).where(LoginCode.hash == hash, LoginCode.expires_at > now)
    return session.scalar(query)


def take_code(session: Session, hash: str, now: datetime) -> str | None:
    """Remove an unexpired code, so that it is used once; return the id of its token."""
    return session.scalars(
        delete(LoginCode)
        .where(LoginCode.hash == hash, LoginCode.expires_at > now)
        .returning(LoginCode.token_id)
    ).one_or_none()
