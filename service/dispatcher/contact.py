"""How long the heartbeats of attempts have arrived without a gap."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from service.scheduling.repository import AttemptView


class _Heartbeats(NamedTuple):
    first: datetime
    """The first heartbeat since the last gap."""
    newest: datetime
    called_at: datetime
    every: timedelta
    """Time between the last two calls."""


class Contact:
    """Tracks since when the heartbeats of attempts arrive without a gap.

    While the API is unreachable, ranks neither receive stop requests nor report progress. The first heartbeat
    after an outage may be the driver's, before rank 0 has reported anything.

    Args:
        gap: a longer time without a heartbeat interrupts the contact.
    """

    def __init__(self, gap: timedelta) -> None:
        self._gap = gap
        self._heartbeats: dict[str, _Heartbeats] = {}
        """By submission id."""

    def keep(self, attempts: Iterable[AttemptView]) -> None:
        """Forget all attempts but these."""
        for id in self._heartbeats.keys() - {attempt.submission_id for attempt in attempts}:
            del self._heartbeats[id]

    def standstill(self, attempt: AttemptView, requested_at: datetime, now: datetime) -> timedelta:
        """Return how long an attempt has sent heartbeats, but made no progress, since a request."""
        heartbeat_at = attempt.heartbeat_at
        if heartbeat_at is None or heartbeat_at <= requested_at:
            return timedelta()
        last = self._heartbeats.get(
            attempt.submission_id, _Heartbeats(heartbeat_at, heartbeat_at, now, timedelta())
        )
        # Heartbeats between two calls are invisible, so rare calls alone are not a gap. A single late call is one:
        # the database was unreachable, or the machine slept.
        gap = max(self._gap, 2 * last.every)
        first = heartbeat_at if heartbeat_at - last.newest > gap else last.first
        every = now - last.called_at
        self._heartbeats[attempt.submission_id] = _Heartbeats(first, heartbeat_at, now, every)
        return heartbeat_at - max(first, requested_at, attempt.progressed_at or first)
