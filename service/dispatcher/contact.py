"""Which attempts the dispatcher hears from, through the API."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from service.scheduling.repository import AttemptView


class Contact:
    """Since when the heartbeats of attempts arrive without a gap.

    While the API is away, no rank learns of a request, and none can report progress. The first heartbeat
    after that may be the driver's, before rank 0 has reported anything.

    Args:
        gap: a longer time without a heartbeat interrupts the contact.
    """

    def __init__(self, gap: timedelta) -> None:
        self._gap = gap
        self._heard: dict[str, tuple[datetime, datetime]] = {}
        """The first heartbeat since the last gap and the newest one, by submission id."""

    def keep(self, attempts: Iterable[AttemptView]) -> None:
        """Forget all attempts but these."""
        live = {attempt.submission_id for attempt in attempts}
        self._heard = {name: times for name, times in self._heard.items() if name in live}

    def standstill(self, attempt: AttemptView, requested_at: datetime) -> timedelta:
        """Return how long an attempt has been heard after a request without any progress."""
        heartbeat_at = attempt.heartbeat_at
        if heartbeat_at is None or heartbeat_at <= requested_at:
            return timedelta()
        first, newest = self._heard.get(attempt.submission_id, (heartbeat_at, heartbeat_at))
        if heartbeat_at - newest > self._gap:
            first = heartbeat_at
        self._heard[attempt.submission_id] = first, heartbeat_at
        return heartbeat_at - max(first, requested_at, attempt.progressed_at or first)
