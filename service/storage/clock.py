"""The time by which old files are removed for good: a clock that jumped must not decide alone."""

from datetime import datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.db.leases import current_time
from service.db.models import Event, Job, Usage

# Clocks that a time service sets differ by less than a second.
_APART = timedelta(minutes=5)
# SQLite has no clock of its own: rows are written while anything happens, and nothing old is in the way else.
_SILENT = timedelta(days=1)


def removal_time(session: Session, now: datetime) -> datetime | None:
    """Return the time by which to tell how old something is; `None` if it may be wrong, so that nothing is removed.

    On PostgreSQL it is the database's, which must agree with this machine's. On SQLite it is this machine's, which must
    be at most a day later than the newest job, event or hour of use.

    Args:
        now: the time of this machine.
    """
    if session.get_bind().dialect.name == "postgresql":
        time = current_time(session)
        return time if abs(time - now) <= _APART else None
    newest = [
        session.scalar(select(Event.at).order_by(Event.position.desc()).limit(1)),
        session.scalar(select(Job.created_at).order_by(Job.id.desc()).limit(1)),
        session.scalar(select(func.max(Usage.hour))),
    ]
    known = [time for time in newest if time is not None]
    return now if known and now - max(known) <= _SILENT else None
