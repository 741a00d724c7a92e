"""Fair share: order queued jobs of the same class by the past use of their tenants and accounts.

An account is a user, or a token that belongs to no user. Among tenants, the one with the least use in
relation to its weight comes first; among its accounts, the one with the least use; among its jobs, the
oldest. Use is counted in GPU-hours and decays with a half-life. A job is charged in advance with its first
hour when it starts or takes its place in the order, so that jobs of several tenants alternate. With one tenant and
one account, jobs start in the order of submission.

Later jobs of an account may start before its oldest one, if that lacks room, and use up the share of both. Therefore
a job that has been its account's oldest for a day comes first.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from service.scheduling.packing import Demand

CPU_HOURS_PER_GPU_HOUR = 32
"""Number of CPU-hours that count as one GPU-hour."""
IN_ADVANCE = timedelta(hours=1)
"""Use that a job is charged with when it starts."""
PATIENCE = timedelta(hours=24)
"""After this time without a start of its oldest job, an account comes first."""


class Account(NamedTuple):
    """The tenant, and user or token, that a job is charged to."""

    tenant: str
    id: str | None
    """The user, or the token that belongs to no user; `None` if unknown."""


class Waiting(NamedTuple):
    """A queued job, with what decides its place in the order."""

    job_id: str
    demand: Demand


class Use(NamedTuple):
    """Use of the cluster by an account, in one hour or longer ago."""

    account: Account
    at: datetime
    gpu_seconds: float
    cpu_seconds: float


def cost(gpus: float, cpus: float, time: timedelta) -> float:
    """Return the use of resources for some time, in GPU-hours."""
    return (gpus + cpus / CPU_HOURS_PER_GPU_HOUR) * (time / timedelta(hours=1))


def decayed(amount: float, age: timedelta, half_life: timedelta) -> float:
    """Return the part of a past use that still counts."""
    return float(amount * 0.5 ** (max(age, timedelta()) / half_life))


@dataclass
class Turns:
    """Tracks since when each account waits for the start of its oldest job."""

    _since: dict[Account, tuple[datetime, str]] = field(default_factory=dict)

    def overdue(self, oldest: Mapping[Account, str], now: datetime) -> list[Account]:
        """Return the accounts that have waited for more than `PATIENCE`, the longest first.

        Args:
            oldest: the oldest waiting job of each account.
        """
        since = {}
        for account, job_id in oldest.items():
            at, known = self._since.get(account, (now, ""))
            since[account] = (at if known == job_id else now, job_id)
        self._since = since
        late = [account for account, (at, _) in since.items() if now - at > PATIENCE]
        return sorted(late, key=lambda account: since[account])


@dataclass
class Shares:
    """Decayed use of tenants and accounts in GPU-hours, and the weights of the tenants."""

    weights: Mapping[str, float] = field(default_factory=dict)
    of_tenant: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    of_account: defaultdict[Account, float] = field(default_factory=lambda: defaultdict(float))

    def copy(self) -> Shares:
        """Return an independent copy."""
        return Shares(self.weights, self.of_tenant.copy(), self.of_account.copy())

    def add(self, uses: Iterable[Use], now: datetime, half_life: timedelta) -> None:
        for use in uses:
            amount = cost(use.gpu_seconds, use.cpu_seconds, timedelta(seconds=1))
            self._charge(use.account, decayed(amount, now - use.at, half_life))

    def charge(self, account: Account, demand: Demand) -> None:
        """Charge an account in advance for a job that runs or is the next to start."""
        self._charge(account, cost(demand.gpus, demand.cpus, IN_ADVANCE))

    def normalized(self, tenant: str) -> float:
        """Return the use of a tenant in relation to its weight."""
        return self.of_tenant[tenant] / self.weights.get(tenant, 1.0)

    def _charge(self, account: Account, amount: float) -> None:
        self.of_tenant[account.tenant] += amount
        self.of_account[account] += amount


def in_order(
    shares: Shares,
    queues: Mapping[Account, Iterator[Waiting]],
    turns: Turns,
    now: datetime,
) -> Iterator[str]:
    """Yield the ids of waiting jobs in the order of fair share; charge each job to `shares`.

    Args:
        queues: the waiting jobs of each account, oldest first; read lazily.
    """
    heads = ((account, next(queue, None)) for account, queue in queues.items())
    oldest = {account: job for account, job in heads if job is not None}
    jobs = {account: job.job_id for account, job in oldest.items()}
    for account in turns.overdue(jobs, now):
        job = oldest.pop(account)
        yield job.job_id
        shares.charge(account, job.demand)
        if (following := next(queues[account], None)) is not None:
            oldest[account] = following
    accounts: defaultdict[str, list[tuple[float, Waiting, Account]]] = defaultdict(list)
    for account, job in oldest.items():
        heapq.heappush(accounts[account.tenant], (shares.of_account[account], job, account))
    tenants = [(shares.normalized(tenant), heap[0][1], tenant) for tenant, heap in accounts.items()]
    heapq.heapify(tenants)
    while tenants:
        _, _, tenant = heapq.heappop(tenants)
        heap = accounts[tenant]
        _, job, account = heapq.heappop(heap)
        yield job.job_id
        shares.charge(account, job.demand)
        if (following := next(queues[account], None)) is not None:
            heapq.heappush(heap, (shares.of_account[account], following, account))
        if heap:
            heapq.heappush(tenants, (shares.normalized(tenant), heap[0][1], tenant))
