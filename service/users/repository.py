"""SQL of users."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.db.models import User


def add(session: Session, user: User) -> bool:
    """Add a user, unless the tenant has one of this identity; return whether it was added."""
    try:
        with session.begin_nested():
            session.add(user)
    except IntegrityError:
        return False
    return True


def get(session: Session, tenant: str, user_id: str, *, lock: bool = False) -> User | None:
    """Return a tenant's user.

    Args:
        lock: until the transaction ends.
    """
    query = select(User).where(User.id == user_id, User.tenant == tenant)
    return session.scalars(query.with_for_update() if lock else query).one_or_none()


def by_identity(session: Session, tenant: str, issuer: str, subject: str) -> User | None:
    """Return a tenant's user with this identity at the login provider, and lock its row."""
    query = select(User).where(
        User.tenant == tenant, User.issuer == issuer, User.subject == subject
    )
    return session.scalars(query.with_for_update()).one_or_none()


def newest(session: Session, tenant: str, after: str | None, limit: int) -> Sequence[User]:
    """Return a tenant's users, newest first, disabled ones included; one more than `limit`."""
    query = select(User).where(User.tenant == tenant).order_by(User.id.desc())
    if after is not None:
        query = query.where(User.id < after)
    return session.scalars(query.limit(limit + 1)).all()
