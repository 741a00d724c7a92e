"""Admission: which queued jobs start now, as a pure function of cluster, running jobs and queue.

Jobs start in the order of the queue, each with all its workers at once. The first job that does not
fit gets a reservation: the earliest time at which it is certain to fit, as every running job ends
within its `resources.max_hours`. Later jobs are backfilled if they fit now and do not delay the
reservation: their own limit ends them before it, or they leave enough room beside the reserved job. So
small jobs can never postpone the reserved time, and resources that are not reserved are used.

Jobs that would not fit on the empty cluster, and jobs held back by a quota of their token, are skipped
and get no reservation: more machines, or the end of the token's own jobs, must come first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import groupby
from typing import Literal

from service.scheduling import packing
from service.scheduling.nodes import Cluster
from service.scheduling.packing import Demand, Worker


@dataclass(frozen=True)
class Quota:
    """Limits on the running jobs of one token; `None` means unlimited."""

    max_running_jobs: int | None = None
    max_gpus: int | None = None


@dataclass(frozen=True)
class Running:
    """A job that holds resources."""

    demand: Demand
    ends_by: datetime
    """The latest time at which it ends; not in the past."""
    token_id: str | None = None
    """The token whose quota it uses; `None` if no quota."""


@dataclass(frozen=True)
class Queued:
    """A job that waits for resources."""

    job_id: str
    attempt: int
    """Number of its last attempt; 0 if it never ran."""
    demand: Demand
    max_runtime: timedelta
    """The longest time that it may run."""
    token_id: str | None = None
    quota: Quota = Quota()


WaitsFor = Literal["machines", "quota", "room", "reserved-room"]


@dataclass(frozen=True)
class Decision:
    """The decision on one queued job: it starts, or it waits, with a reason for its owner."""

    job: Queued
    waits_for: WaitsFor | None = None
    message: str = ""
    starts_by: datetime | None = None
    """The latest start of a job with a reservation, unless a job of higher priority arrives."""

    @property
    def starts(self) -> bool:
        """Whether the job starts now."""
        return self.waits_for is None


@dataclass
class _Taken:
    """What running jobs hold: workers by kind, and quotas by token."""

    workers: Counter[Worker] = field(default_factory=Counter)
    jobs: Counter[str | None] = field(default_factory=Counter)
    gpus: Counter[str | None] = field(default_factory=Counter)

    @classmethod
    def of(cls, running: Iterable[Running]) -> _Taken:
        taken = cls()
        for job in running:
            taken.change(job, +1)
        return taken

    def change(self, job: Running | Queued, sign: Literal[1, -1]) -> None:
        """Add or subtract the demand of one job."""
        self.workers[job.demand.worker] += sign * job.demand.workers
        self.jobs[job.token_id] += sign
        self.gpus[job.token_id] += sign * job.demand.gpus


@dataclass
class _Reservation:
    """The reservation of the first job that does not fit: it can start at `at`."""

    job: Queued
    at: datetime
    others: Counter[Worker]
    """Workers that may still run at that time."""


def decide(
    cluster: Cluster, running: Sequence[Running], queue: Iterable[Queued], now: datetime
) -> list[Decision]:
    """Decide on every job of the queue, in order.

    Args:
        running: all jobs that hold resources; their `ends_by` must be enforced.
    """
    return _Round(cluster, running, now).decide(queue)


class _Round:
    def __init__(self, cluster: Cluster, running: Sequence[Running], now: datetime) -> None:
        self._cluster, self._now = cluster, now
        self._running = list(running)
        self._taken = _Taken.of(running)
        self._reservation: _Reservation | None = None
        # Most jobs of a long queue have equal demands. Room only shrinks during a round, so a demand that
        # did not fit once need not be tried again.
        self._places = cache(lambda worker: packing.empty_places(cluster.nodes, worker))
        self._does_not_fit: set[Demand] = set()
        self._delays_reserved: set[Demand] = set()
        self._in_use = self._count_use()
        self._total = cluster.total_cpus, cluster.total_gpus

    def decide(self, queue: Iterable[Queued]) -> list[Decision]:
        return [self._decide(job) for job in queue]

    def _decide(self, job: Queued) -> Decision:
        if self._places(job.demand.worker) < job.demand.workers:
            return Decision(job, "machines", self._too_few_machines(job.demand))
        exceeded = _exceeded(self._taken, job)
        if exceeded is not None:
            return Decision(job, "quota", exceeded)
        if not self._fits(job.demand):
            message = self._too_little_room(job.demand)
            if self._reservation is not None:
                return Decision(job, "room", message)
            self._reservation = self._reserve(job)
            at = self._reservation.at
            message += ". Room is kept for it: it starts as soon as enough running jobs end"
            if at > self._now:
                latest = f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC at the latest"
                message += f", {latest} (by the max_hours of the running jobs)"
            return Decision(job, "room", message, starts_by=at)
        if not self._fits_beside_reservation(job):
            message = f"Waiting for {job.demand}: free, but reserved for an earlier job"
            return Decision(job, "reserved-room", message)
        self._taken.change(job, +1)
        self._in_use = self._count_use()
        self._running.append(Running(job.demand, self._now + job.max_runtime, job.token_id))
        return Decision(job)

    def _fits(self, demand: Demand) -> bool:
        if demand in self._does_not_fit:
            return False
        if packing.fits(self._cluster.nodes, self._taken.workers, demand):
            return True
        self._does_not_fit.add(demand)
        return False

    def _reserve(self, job: Queued) -> _Reservation:
        """Return a reservation at the earliest time at which the job is certain to fit."""
        remaining = _Taken.of(self._running)
        by_end = sorted(self._running, key=lambda other: other.ends_by)
        for at, ending in groupby(by_end, key=lambda other: other.ends_by):
            for other in ending:
                remaining.change(other, -1)
            if packing.fits(self._cluster.nodes, remaining.workers, job.demand):
                return _Reservation(job, at, remaining.workers)
        raise AssertionError("the job fits on the empty cluster")

    def _fits_beside_reservation(self, job: Queued) -> bool:
        """Whether the reserved job can still start on time if `job` starts now."""
        reserved = self._reservation
        if reserved is None:
            return True
        if job.token_id == reserved.job.token_id and not self._leaves_quota_for_reservation(
            job, reserved.job
        ):
            return False
        if self._now + job.max_runtime <= reserved.at:
            return True
        if job.demand in self._delays_reserved:
            return False
        others = reserved.others + Counter({job.demand.worker: job.demand.workers})
        if packing.fits(self._cluster.nodes, others, reserved.job.demand):
            reserved.others = others
            return True
        self._delays_reserved.add(job.demand)
        return False

    def _leaves_quota_for_reservation(self, job: Queued, reserved: Queued) -> bool:
        # Checked now, not only at the reserved time: an exhausted quota would end the reservation.
        self._taken.change(job, +1)
        is_left = _exceeded(self._taken, reserved) is None
        self._taken.change(job, -1)
        return is_left

    def _count_use(self) -> tuple[int, int]:
        """Return the numbers of CPUs and GPUs in use."""
        taken = self._taken.workers.items()
        cpus = sum(worker.cpus * count for worker, count in taken)
        return cpus, sum(worker.gpus * count for worker, count in taken)

    def _too_little_room(self, demand: Demand) -> str:
        (cpus, gpus), (all_cpus, all_gpus) = self._in_use, self._total
        in_use = f"{cpus} of {all_cpus:g} CPUs"
        if all_gpus:
            in_use += f" and {gpus} of {all_gpus:g} GPUs"
        message = f"Waiting for {demand}: {in_use} are in use"
        left = demand.cpus <= all_cpus - cpus and demand.gpus <= all_gpus - gpus
        return f"{message}, and no node may have enough of the rest" if left else message

    def _too_few_machines(self, demand: Demand) -> str:
        cluster = self._cluster
        return (
            f"Waiting for more machines: {demand.workers} workers with {demand} in all do not fit "
            f"on {len(cluster.nodes)} nodes with {cluster.total_cpus:g} CPUs and "
            f"{cluster.total_gpus:g} GPUs in all"
        )


def _exceeded(taken: _Taken, job: Queued) -> str | None:
    """Return a message about the token's quota that the job would exceed; `None` if there is none."""
    jobs, gpus, quota = taken.jobs[job.token_id], taken.gpus[job.token_id], job.quota
    if quota.max_running_jobs is not None and jobs >= quota.max_running_jobs:
        return (
            f"Waiting for the quota of its token: max_running_jobs is {quota.max_running_jobs}, "
            f"with {jobs} running"
        )
    needed = job.demand.gpus
    if quota.max_gpus is not None and needed and gpus + needed > quota.max_gpus:
        return (
            f"Waiting for the quota of its token: max_gpus is {quota.max_gpus}, {gpus} are in use, "
            f"and it needs {needed}"
        )
    return None
