"""The part of a long queue that one round of admission considers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import islice

from sqlalchemy.orm import Session

from service.ledger import repository as ledger
from service.scheduling import repository
from service.scheduling.admission import Queued, Running
from service.scheduling.fair_share import Account, Shares, Use, in_order
from service.scheduling.repository import QueuePosition

ALWAYS = 500
"""The first jobs of the queue, which every round considers."""
IN_TURN = 500
"""Further jobs that a round considers; the next round considers those after them."""

_REFRESH = timedelta(seconds=10)
_FORGOTTEN = 10  # half-lives


class FairQueue:
    """The queue in the order of admission: by rank, then by fair share, then oldest first."""

    def __init__(self, half_life: timedelta) -> None:
        self._half_life = half_life
        self._past, self._read_at = Shares(), datetime.min

    def first(self, session: Session, taken: Sequence[Running], now: datetime) -> list[str]:
        """Return the ids of the first jobs.

        Args:
            taken: the jobs that hold resources, which are charged at once.
        """
        shares = self._read_past(session, now).copy()
        for job in taken:
            if job.tenant is not None:
                shares.charge(Account(job.tenant, job.token_id), job.demand)
        ids: list[str] = []
        for queues in repository.waiting(session, ALWAYS):
            ids += islice(in_order(shares, queues), ALWAYS - len(ids))
            if len(ids) == ALWAYS:
                break
        return ids

    def _read_past(self, session: Session, now: datetime) -> Shares:
        """Return the decayed use, which is read again after some seconds."""
        naive = now.replace(tzinfo=None)
        if abs(naive - self._read_at) >= _REFRESH:
            rows = ledger.by_account(session, now - _FORGOTTEN * self._half_life)
            self._past = Shares(repository.weights(session))
            uses = (Use(Account(row[0], row[1]), row[2], row[3], row[4]) for row in rows)
            self._past.add(uses, now, self._half_life)
            self._read_at = naive
        return self._past


class QueueWindow:
    """Reads the first jobs of the queue, and all others in turn.

    The cost of a round is therefore limited however long the queue is, and each job is considered: one
    that fits beside the first ones need not wait until all jobs before it have started.
    """

    def __init__(self, half_life: timedelta) -> None:
        self._fair = FairQueue(half_life)
        self._reached: QueuePosition | None = None

    def read(self, session: Session, taken: Sequence[Running], now: datetime) -> list[Queued]:
        """Return the jobs that this round considers, in the order of the queue."""
        first = self._fair.first(session, taken, now)
        jobs = repository.load_queued(session, first)
        if len(first) < ALWAYS:
            self._reached = None
            return jobs
        later = repository.queued(session, IN_TURN, self._reached, first)
        self._reached = later.end
        return jobs + later.jobs
