"""SQL of logins in progress."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from service.db.models import Login


def add(session: Session, login: Login) -> None:
    """Store a started login."""
    session.add(login)
    session.flush()


def take(session: Session, state_hash: str, now: datetime) -> Login | None:
    """Remove and return a login that has not expired, so that it is used once."""
    return session.scalars(
        delete(Login).where(Login.state_hash == state_hash, Login.expires_at > now).returning(Login)
    ).one_or_none()


def remove_expired(session: Session, now: datetime) -> int:
    """Remove expired logins; return the number of the remaining ones."""
    session.execute(delete(Login).where(Login.expires_at <= now))
    return session.scalar(select(func.count()).select_from(Login)) or 0


def count_from(session: Session, address: str | None) -> int:
    """Count the unfinished logins from an address."""
    query = select(func.count()).where(Login.address.is_not_distinct_from(address))
    return session.scalar(query) or 0
