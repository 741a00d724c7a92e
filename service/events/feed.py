"""The live stream of a tenant's events. All streams of a process share one poll of the database."""

import logging
import threading
import time
from dataclasses import dataclass

from fastapi.sse import format_sse_event

from service.api.sse import PollResult
from service.db.session import AWAY, Database, first_line
from service.events import repository
from service.events.repository import EventFilter
from service.events.views import event_entry

logger = logging.getLogger(__name__)
_EVENTS_AT_ONCE = 500


class Feed:
    """The newest position of each tenant, read at most once per interval.

    Args:
        seconds: the interval.
    """

    def __init__(self, database: Database, seconds: float) -> None:
        self.database = database
        self._seconds = seconds
        self._lock = threading.Lock()
        self._read_at: float | None = None
        # Positions up to `_base` were assigned before the first poll; `_newest` has tenants with later positions.
        self._base = self._last = 0
        self._newest: dict[str, int] = {}

    def assign_positions(self) -> None:
        """Assign positions to the events without one."""
        with self.database.autocommit() as session:
            is_due = repository.has_unassigned(session)
        if is_due:
            with self.database.write() as session:
                repository.assign_positions(session)

    def newest(self, tenant: str) -> int:
        """Return a position after which the tenant had no events at the last poll; poll if due."""
        with self._lock:
            now = time.monotonic()
            if self._read_at is None or now - self._read_at >= self._seconds:
                self.assign_positions()
                with self.database.autocommit() as session:
                    if self._read_at is None:
                        self._base = self._last = repository.last_position(session)
                    newest = repository.newest_positions(session, self._last)
                self._newest |= newest
                self._last = max([self._last, *newest.values()])
                self._read_at = now
            return self._newest.get(tenant, self._base)


def assign_before_list(feed: Feed) -> None:
    """Assign positions to new events before a list is read; if the database is full, the list lacks them."""
    try:
        feed.assign_positions()
    except AWAY as error:
        logger.warning("New events are not in the list: %s", first_line(error))


@dataclass
class TenantStream:
    """The events after the position `after` that match a filter."""

    feed: Feed
    filter: EventFilter
    after: int

    def poll(self) -> PollResult:
        """Read the events since the last poll. The stream has no end."""
        newest = self.feed.newest(self.filter.tenant)
        if self.after >= newest:
            return PollResult([])
        with self.feed.database.read() as session:
            rows = repository.since(session, self.filter, self.after, newest, _EVENTS_AT_ONCE)
            entries = [event_entry(event, name) for event, name in rows[:_EVENTS_AT_ONCE]]
        more = len(rows) > _EVENTS_AT_ONCE
        self.after = entries[-1].id if more else newest
        messages = [
            format_sse_event(id=str(entry.id), data_str=entry.model_dump_json())
            for entry in entries
        ]
        return PollResult(messages, more=more)
