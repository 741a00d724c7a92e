"""The time by which old files are removed for good: a clock that jumped must not decide alone."""

from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from service.db import leases
from service.storage import repository

# Clocks that a time service sets differ by less than a second.
_APART = timedelta(minutes=5)
# SQLite has no clock of its own, but rows are written while anything happens. Nothing new needs the room else.
_SILENT = timedelta(days=1)


def removal_time(session: Session, now: datetime) -> datetime | None:
    """Return the time by which to tell how old something is; `None` if it may be wrong, so that nothing is removed.

    On PostgreSQL it is the database's, which must agree with this machine's. On SQLite it is this machine's, which must
    be at most a day later than the newest job, event or hour of use.

    Args:
        now: the time of this machine.
    """
    if session.get_bind().dialect.name == "postgresql":
        time = leases.current_time(session)
        return time if abs(time - now) <= _APART else None
    return None if is_silent(session, now) else now


def is_silent(session: Session, now: datetime) -> bool:
    """Whether nothing has happened in an SQLite database for a day, so that nothing shows that the clock is right."""
    if session.get_bind().dialect.name == "postgresql":
        return False
    newest = repository.newest_time(session)
    return newest is None or now - newest > _SILENT


def is_empty(session: Session) -> bool:
    """Whether nothing has ever happened in an SQLite database, so that there is nothing to remove either."""
    return (
        session.get_bind().dialect.name != "postgresql" and repository.newest_time(session) is None
    )
