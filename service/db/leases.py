"""Leases: which process holds a role, and until when. The caller commits."""

from datetime import UTC, datetime, timedelta

from sqlalchemy import DateTime, bindparam, func, or_, select, update
from sqlalchemy.orm import Session

from service.db.models import Lease
from service.db.rows import add_if_new

DISPATCHER_LEASE = "dispatcher"
MAX_LEASE = timedelta(minutes=10)
"""Upper limit of `DASL_LEASE_SECONDS`."""
_NOBODY = ""
"""Holder of a lease that was released."""


def current_time(session: Session) -> datetime:
    """Return the time by which leases expire: PostgreSQL's, or this machine's for SQLite.

    The clocks of the machines that share a PostgreSQL database may differ.
    """
    if session.get_bind().dialect.name == "postgresql":
        now = session.scalars(select(func.clock_timestamp(type_=DateTime(timezone=True)))).one()
        return now.astimezone(UTC)
    return datetime.now(UTC)


def time_left(session: Session, name: str) -> timedelta | None:
    """Return the time until a lease expires, negative if it has expired; `None` if it was never taken."""
    row = session.get(Lease, name)
    return None if row is None else row.expires_at - current_time(session)


def was_abandoned(session: Session, name: str) -> bool:
    """Whether the last holder of a lease has not released it, for example because it was killed."""
    row = session.get(Lease, name, populate_existing=True)
    return row is not None and row.holder != _NOBODY


# Built once, because each round needs them and SQLAlchemy takes longer to build a statement than to run it. Names of
# columns are not allowed as names of parameters.
_RENEW = (
    update(Lease)
    .where(Lease.name == bindparam("name_"), Lease.holder == bindparam("holder_"))
    .values(expires_at=bindparam("until"))
    .returning(Lease.name)
)
_TAKE = (
    update(Lease)
    .where(
        Lease.name == bindparam("name_"),
        or_(
            Lease.holder == bindparam("holder_"),
            Lease.expires_at <= bindparam("now"),
            Lease.expires_at > bindparam("latest"),
        ),
    )
    .values(holder=bindparam("holder_"), expires_at=bindparam("until"))
    .returning(Lease.name)
)


def take_lease(session: Session, name: str, holder: str, length: timedelta) -> bool:
    """Take or renew a lease that is free, expired or already held by `holder`.

    A lease that ends later than possible dates from before the clock was set back and counts as expired.
    """
    now = current_time(session)
    expires_at = now + length
    if session.get(Lease, name) is None:
        # It fails if another holder took it first.
        return add_if_new(session, Lease(name=name, holder=holder, expires_at=expires_at))
    # Do not use `length`, as the holder may have another setting.
    values = {"holder_": holder, "until": expires_at, "now": now, "latest": now + MAX_LEASE}
    return session.execute(_TAKE, {"name_": name, **values}).scalar() is not None


def renew_lease(session: Session, name: str, holder: str, length: timedelta) -> bool:
    """Renew a lease that no other holder has taken; the row stays locked until the transaction ends."""
    values = {"name_": name, "holder_": holder, "until": current_time(session) + length}
    return session.execute(_RENEW, values).scalar() is not None


def release_lease(session: Session, name: str, holder: str) -> None:
    """Release a lease, so that the next holder need not wait until it expires."""
    session.execute(
        update(Lease)
        .where(Lease.name == name, Lease.holder == holder)
        .values(holder=_NOBODY, expires_at=current_time(session))
    )
