"""SQL of logins in progress, and of the users who log in."""

from datetime import datetime

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from service.db.models import Login, User


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


def find_user(session: Session, tenant: str, issuer: str, subject: str) -> User | None:
    """Return a tenant's user with this identity at the login provider, and lock its row."""
    query = select(User).where(
        User.tenant == tenant, User.issuer == issuer, User.subject == subject
    )
    return session.scalars(query.with_for_update()).one_or_none()
