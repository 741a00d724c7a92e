"""SQL of users."""

from __future__ import annotations

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


def by_identity(session: Session, tenant: str, issuer: str, subject: str) -> User | None:
    """Return a tenant's user with this identity at the login provider, and lock its row."""
    query = select(User).where(
        User.tenant == tenant, User.issuer == issuer, User.subject == subject
    )
    return session.scalars(query.with_for_update()).one_or_none()
