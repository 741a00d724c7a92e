"""The part of a long queue that one round of admission considers."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice

from sqlalchemy.orm import Session

from service.ledger import repository as ledger
from service.scheduling import repository
from service.scheduling.admission import Queued, Running
from service.scheduling.fair_share import Account, Shares, Turns, Use, Waiting, in_order
from service.scheduling.preemption import Rank
from service.scheduling.repository import Entry, QueuePosition

ALWAYS = 500
"""Number of jobs at the head of the queue that every round considers."""
IN_TURN = 500
"""Number of further jobs that a round considers; the next round continues after them."""

_REFRESH = timedelta(seconds=10)
FORGOTTEN = 10
"""Number of half-lives for which use counts."""
_REFILLS = 20


class FairQueue:
    """The queue in the order of admission: by rank, then by fair share, then oldest first."""

    def __init__(self, half_life: timedelta) -> None:
        self._half_life = half_life
        self._past, self._read_at = Shares(), datetime.min
        # A restart of the process resets it, which only delays overdue jobs.
        self._turns: dict[Rank, Turns] = {}

    def first(self, session: Session, taken: Sequence[Running], now: datetime) -> list[str]:
        """Return the ids of the first jobs.

        Args:
            taken: the jobs that hold resources, which are charged first.
        """
        shares = self._read_past(session, now).copy()
        for job in taken:
            if job.tenant is not None:
                shares.charge(Account(job.tenant, job.account_id), job.demand)
        ids: list[str] = []
        for preemptible in (False, True):
            left = ALWAYS - len(ids)
            entries = repository.front(session, preemptible, left + 1)
            # More jobs of the last rank may wait than were read.
            cut = entries[-1].rank if len(entries) > left else None
            queues = _by_rank(session, entries)
            if cut is not None:
                queues[cut] = _longer_queues(session, cut, left)
            for rank, of_rank in queues.items():
                turns = self._turns.setdefault(rank, Turns())
                ids += islice(in_order(shares, of_rank, turns, now), ALWAYS - len(ids))
            if len(ids) == ALWAYS:
                break
        return ids

    def _read_past(self, session: Session, now: datetime) -> Shares:
        """Return the decayed use, cached for some seconds."""
        naive = now.replace(tzinfo=None)
        if abs(naive - self._read_at) >= _REFRESH:
            rows = ledger.by_account(session, now - FORGOTTEN * self._half_life)
            self._past = Shares(repository.weights(session))
            uses = (Use(Account(row[0], row[1]), row[2], row[3], row[4]) for row in rows)
            self._past.add(uses, now, self._half_life)
            self._read_at = naive
        return self._past


_Queues = dict[Account, Iterator[Waiting]]


def _by_rank(session: Session, entries: Sequence[Entry]) -> dict[Rank, _Queues]:
    """Return the queues of accounts by rank, highest first, each oldest first."""
    demands = repository.demands(session, [entry.job_id for entry in entries])
    waiting: dict[Rank, dict[Account, list[Waiting]]] = {}
    for rank, account, job_id in entries:
        of_account = waiting.setdefault(rank, {}).setdefault(account, [])
        of_account.append(Waiting(job_id, demands[job_id]))
    return {
        rank: {account: iter(sorted(jobs)) for account, jobs in of_rank.items()}
        for rank, of_rank in waiting.items()
    }


def _longer_queues(session: Session, rank: Rank, limit: int) -> _Queues:
    """Return the queues of the accounts that have jobs of a rank, without reading all jobs.

    The number of statements is limited: after `_REFILLS` more, the queues of accounts end early.
    """
    first, most = repository.first_per_account(session, rank, 2 * limit)
    demands = repository.demands(session, [job_id for ids in first.values() for job_id in ids])
    refills = iter(range(_REFILLS))

    def queue(account: Account, ids: list[str]) -> Iterator[Waiting]:
        for job_id in ids:
            yield Waiting(job_id, demands[job_id])
        if len(ids) < most or next(refills, None) is None:
            return
        more = repository.next_in_account(session, rank, account, ids[-1], limit)
        demands.update(repository.demands(session, more))
        for job_id in more:
            yield Waiting(job_id, demands[job_id])

    return {account: queue(account, ids) for account, ids in first.items()}


class QueueWindow:
    """Reads the first jobs of the queue, and all others in turn.

    This limits the cost of a round for any length of the queue, while each job is still considered and can be
    backfilled.
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
        later, self._reached = repository.queued(session, IN_TURN, self._reached, set(first))
        return jobs + later
