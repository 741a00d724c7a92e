"""Which attempts the dispatcher hears from, through the API."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from service.scheduling.repository import AttemptView


class _Heard(NamedTuple):
    first: datetime
    """The first heartbeat since the last gap."""
    newest: datetime
    called_at: datetime
    every: timedelta
    """Time between the last two calls."""


class Contact:
    """Since when the heartbeats of attempts arrive without a gap.

    While the API is away, no rank learns of a request, and none can report progress. The first heartbeat
    after that may be the driver's, before rank 0 has reported anything.

    Args:
        gap: a longer time without a heartbeat interrupts the contact.
    """

    def __init__(self, gap: timedelta) -> None:
        self._gap = gap
        self._heard: dict[str, _Heard] = {}
        """By submission id."""

    def keep(self, attempts: Iterable[AttemptView]) -> None:
        """Forget all attempts but these."""
        live = {attempt.submission_id for attempt in attempts}
        self._heard = {name: heard for name, heard in self._heard.items() if name in live}

    def standstill(self, attempt: AttemptView, requested_at: datetime, now: datetime) -> timedelta:
        """Return how long an attempt has been heard after a request without any progress."""
        heartbeat_at = attempt.heartbeat_at
        if heartbeat_at is None or heartbeat_at <= requested_at:
            return timedelta()
        last = self._heard.get(
            attempt.submission_id, _Heard(heartbeat_at, heartbeat_at, now, timedelta())
        )
        # Heartbeats between two calls are not seen: where these are always rare, their distance is no gap. It is one
        # where only the last call is long ago: the database was away, or the machine asleep.
        gap = max(self._gap, 2 * last.every)
        first = heartbeat_at if heartbeat_at - last.newest > gap else last.first
        self._heard[attempt.submission_id] = _Heard(first, heartbeat_at, now, now - last.called_at)
        return heartbeat_at - max(first, requested_at, attempt.progressed_at or first)
