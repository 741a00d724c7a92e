"""The part of a long queue that one round of admission considers."""

from __future__ import annotations

from sqlalchemy.orm import Session

from service.scheduling import repository
from service.scheduling.admission import Queued
from service.scheduling.repository import QueuePosition

ALWAYS = 500
"""The first jobs of the queue, which every round considers."""
IN_TURN = 500
"""Jobs behind these that a round considers; the next round considers those after them."""


class QueueWindow:
    """Reads the first jobs of the queue, and some later ones in turn.

    The cost of a round is therefore limited however long the queue is, and each job is considered: one
    that fits beside the first ones need not wait until all jobs before it have started.
    """

    def __init__(self) -> None:
        self._reached: QueuePosition | None = None

    def read(self, session: Session) -> list[Queued]:
        """Return the jobs that this round considers, in the order of the queue."""
        first = repository.queued(session, ALWAYS)
        if first.end is None:
            self._reached = None
            return first.jobs
        later = repository.queued(session, IN_TURN, self._behind(first.end))
        self._reached = later.end
        return first.jobs + later.jobs

    def _behind(self, end: QueuePosition) -> QueuePosition:
        reached = self._reached
        if reached is None or reached.is_before(end):
            return end
        return reached
