"""Leases: which process holds a role, and until when. Nothing here commits."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import or_, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.db.models import Lease

DISPATCHER_LEASE = "dispatcher"


def lease(session: Session, name: str) -> Lease | None:
    """Return the row of a lease, expired or not."""
    return session.get(Lease, name)


def lease_is_held(session: Session, name: str, now: datetime) -> bool:
    """Whether the lease is held at this time."""
    row = lease(session, name)
    return row is not None and row.expires_at > now


def take_lease(session: Session, name: str, holder: str, now: datetime, length: timedelta) -> bool:
    """Take or renew a lease that is free, expired, or the holder's own.

    A lease that ends too far in the future dates from before the clock was set back: it is expired.
    """
    expires_at = now + length
    if session.get(Lease, name) is None:
        try:
            with session.begin_nested():
                session.add(Lease(name=name, holder=holder, expires_at=expires_at))
        except IntegrityError:
            return False  # Another holder took it first.
        return True
    name_taken = session.execute(
        update(Lease)
        .where(
            Lease.name == name,
            or_(
                Lease.holder == holder,
                Lease.expires_at <= now,
                Lease.expires_at > now + 2 * length,
            ),
        )
        .values(holder=holder, expires_at=expires_at)
        .returning(Lease.name)
        .execution_options(synchronize_session=False)
    ).scalar()
    return name_taken is not None


def renew_lease(session: Session, name: str, holder: str, expires_at: datetime) -> bool:
    """Renew a lease that no other holder has taken; the row stays locked until the transaction ends."""
    renewed = session.execute(
        update(Lease)
        .where(Lease.name == name, Lease.holder == holder)
        .values(expires_at=expires_at)
        .returning(Lease.name)
        .execution_options(synchronize_session=False)
    ).scalar()
    return renewed is not None


def release_lease(session: Session, name: str, holder: str, now: datetime) -> None:
    """Release a lease, so that the next holder need not wait until it expires."""
    session.execute(
        update(Lease)
        .where(Lease.name == name, Lease.holder == holder)
        .values(expires_at=now)
        .execution_options(synchronize_session=False)
    )
