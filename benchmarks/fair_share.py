"""Fair share, quotas and preemption over a year of a simulated cluster: ``python -m benchmarks.fair_share``.

The real order of the queue, admission and choice of jobs that give way (`service.scheduling`) run 64 GPUs on
8 nodes for 10,000 simulated hours. Tenants with the weights 1, 2 and 5, of two tokens each, always have jobs
of 2 to 64 GPUs waiting; one of their tokens has a quota of running jobs. A tenant has a quota of 8 GPUs,
another one submits small jobs now and then, and preemptible jobs fill what is left.

A job that is not preemptible must start within its bound. Once a job is the oldest of its token, it comes first
after `fair_share.PATIENCE`, behind the oldest of each other token at most, each of which starts as soon as what
runs has reached its time limit; the jobs of its token before it have the same bound. Tenants that always wait
must get at least 80 % of what their weights promise: jobs that fill gaps take the rest.

In a second run only preemptible jobs are submitted on weekends, so that every Monday some must give way. At most
5 % of what these jobs use may be lost by that.
"""

import argparse
import heapq
import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine, write_results
from benchmarks.scheduling import CPUS, GPUS, NODES, REPORT_HOURS, at, place
from service.scheduling.admission import Decision, Queued, Running, decide
from service.scheduling.fair_share import (
    PATIENCE,
    Account,
    Shares,
    Turns,
    Waiting,
    cost,
    decayed,
    in_order,
)
from service.scheduling.nodes import Cluster, Node
from service.scheduling.packing import Demand, Room, Worker
from service.scheduling.preemption import Candidate, Rank, victims
from service.scheduling.quota import NO_QUOTA, Quota

RESULTS = Path(__file__).parent / "results" / "fair_share.json"
HOURS, SEED = 10_000.0, 0
HALF_LIFE = timedelta(hours=24)
LONGEST_LIMIT = 24.0
LEAST_OF_SHARE = 0.8
MOST_LOST = 0.05
SAVE_HOURS, CHECKPOINT_HOURS, FAILED_SAVES = 2 / 60, 0.5, 0.02
_CLUSTER = Cluster(tuple(Node(str(n), "", CPUS, GPUS, 0, 0) for n in range(NODES)))
_WEEK, _WORKING_DAYS = 168, 120
_ALL_GPUS = NODES * GPUS
# Workers with one GPU and four CPUs, and their relative frequencies.
_SIZES = {2: 55, 8: 35, 32: 8, 64: 2}


@dataclass(frozen=True)
class Tenant:
    """A source of jobs."""

    name: str
    weight: float = 1.0
    tokens: int = 1
    waiting: int = 0
    """Jobs that each token always has waiting."""
    per_hour: float = 0.0
    """Mean number of jobs that arrive at random instead."""
    sizes: Sequence[int] = ()
    """Numbers of GPUs, with equal frequency; none: `_SIZES`."""
    preemptible: bool = False
    quota: Quota = NO_QUOTA
    token_quota: Quota = NO_QUOTA
    """Quota of its first token."""

    def accounts(self) -> list[Account]:
        """Return one account for each token."""
        return [Account(self.name, f"{self.name}{number}") for number in range(self.tokens)]


TENANTS = (
    Tenant("one", 1.0, 2, waiting=5),
    Tenant("two", 2.0, 2, waiting=5, token_quota=Quota(max_running_jobs=12)),
    Tenant("five", 5.0, 2, waiting=5),
    Tenant("limited", 1.0, 1, waiting=3, sizes=(2, 8), quota=Quota(max_gpus=8)),
    Tenant("small", 1.0, 1, per_hour=0.5, sizes=(1, 2)),
    Tenant("idle", 1.0, 1, waiting=6, sizes=(4, 8, 16), preemptible=True),
)


_OTHERS = sum(tenant.tokens for tenant in TENANTS if not tenant.preemptible) - 1
LONGEST_TURN = PATIENCE / timedelta(hours=1) + (_OTHERS + 1) * LONGEST_LIMIT
"""Hours that the oldest job of a token waits at most."""


@dataclass
class Job:
    """A job, with what is left of its training."""

    number: int
    tenant: Tenant
    account: Account
    demand: Demand
    left: float
    limit: float
    submitted: float
    bound: float
    """Longest wait that is allowed, in hours."""
    started: float | None = None

    @property
    def id(self) -> str:
        """The id, in the order of submission."""
        return f"{self.number:09}"


class Attempt(NamedTuple):
    """A running attempt of a job; it ends at `ends`, and gives way if `saved` is not the whole rest."""

    job: Job
    placement: Counter[int]
    began: float
    ends: float
    saves_from: float | None = None
    """When it was asked to save a checkpoint and to give way."""


@dataclass
class Cost:
    """What preemption cost."""

    preemptions: int = 0
    failed_saves: int = 0
    repeated_gpu_hours: float = 0.0
    saving_gpu_hours: float = 0.0


@dataclass
class Simulation:
    """A cluster with the queue of all tenants."""

    rng: random.Random
    quiet_weekends: bool = False
    """Whether only preemptible jobs are submitted on weekends."""
    now: float = 0.0
    free: list[Room] = field(default_factory=lambda: [Room(CPUS, GPUS)] * NODES)
    queue: dict[str, Job] = field(default_factory=dict)
    running: dict[str, Attempt] = field(default_factory=dict)
    past: defaultdict[Account, float] = field(default_factory=lambda: defaultdict(float))
    used: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    waits: list[tuple[float, Job]] = field(default_factory=list)
    cost: Cost = field(default_factory=Cost)
    _turns: dict[bool, Turns] = field(default_factory=lambda: {False: Turns(), True: Turns()})
    _numbers: Iterator[int] = field(default_factory=count)
    _moments: list[float] = field(default_factory=lambda: [0.0])

    def run(self, hours: float) -> None:
        """Simulate some time, round by round, whenever something changes."""
        for tenant in TENANTS:
            if tenant.per_hour:
                moment = 0.0
                while moment < hours:
                    moment += self.rng.expovariate(tenant.per_hour)
                    self._moments.append(moment)
        arrivals = {*self._moments[1:]}
        self._moments += range(_WEEK, math.ceil(hours), _WEEK)
        heapq.heapify(self._moments)
        while self._moments and self._moments[0] < hours:
            moment = heapq.heappop(self._moments)
            self._advance(moment)
            self._submit(moment in arrivals)
            self._round()

    def _advance(self, moment: float) -> None:
        """Count the use since the last round, and end what has ended."""
        elapsed = timedelta(hours=moment - self.now)
        for account in self.past:
            self.past[account] = decayed(self.past[account], elapsed, HALF_LIFE)
        for attempt in self.running.values():
            demand = attempt.job.demand
            self.past[attempt.job.account] += cost(demand.gpus, demand.cpus, elapsed)
            self.used[attempt.job.tenant.name] += demand.gpus * (moment - self.now)
        self.now = moment
        for attempt in [each for each in self.running.values() if each.ends <= moment]:
            self._end(attempt)

    def _submit(self, arrival: bool) -> None:
        waiting = Counter(job.account for job in self.queue.values())
        quiet = self.quiet_weekends and self.now % _WEEK >= _WORKING_DAYS
        for tenant in TENANTS:
            if quiet and not tenant.preemptible:
                continue
            for account in tenant.accounts():
                missing = tenant.waiting - waiting[account]
                for _ in range(missing if tenant.waiting else int(arrival)):
                    self._add(tenant, account)

    def _add(self, tenant: Tenant, account: Account) -> None:
        sizes = tenant.sizes or self.rng.choices([*_SIZES], [*_SIZES.values()])
        demand = Demand(self.rng.choice(sizes), Worker(4, 1))
        takes = self.rng.uniform(1, 8)
        limit = self.rng.choice([takes, LONGEST_LIMIT])
        before = sum(job.account == account for job in self.queue.values())
        job = Job(
            next(self._numbers),
            tenant,
            account,
            demand,
            takes,
            limit,
            self.now,
            bound=(before + 1) * LONGEST_TURN,
        )
        self.queue[job.id] = job

    def _round(self) -> None:
        """Do what the dispatcher does in a round."""
        taken = {job_id: self._held(attempt) for job_id, attempt in self.running.items()}
        queue = [self._queued(self.queue[job_id]) for job_id in self._order()]
        decisions = decide(_CLUSTER, [*taken.values()], queue, at(self.now))
        self._preempt(taken, decisions)
        for decision in decisions:
            if decision.starts:
                self._start(self.queue.pop(decision.job.job_id))

    def _order(self) -> list[str]:
        shares = Shares({tenant.name: tenant.weight for tenant in TENANTS})
        for account, amount in self.past.items():
            shares.of_tenant[account.tenant] += amount
            shares.of_account[account] += amount
        for attempt in self.running.values():
            shares.charge(attempt.job.account, attempt.job.demand)
        ids: list[str] = []
        for preemptible in (False, True):
            queues: defaultdict[Account, list[Waiting]] = defaultdict(list)
            for job_id, job in sorted(self.queue.items()):
                if job.tenant.preemptible == preemptible:
                    queues[job.account].append(Waiting(job_id, job.demand))
            of_class = {account: iter(jobs) for account, jobs in queues.items()}
            ids += in_order(shares, of_class, self._turns[preemptible], at(self.now))
        return ids

    def _preempt(self, taken: dict[str, Running], decisions: Iterable[Decision]) -> None:
        decisions = [*decisions]
        reserved = next((each.job for each in decisions if each.starts_by is not None), None)
        if reserved is None:
            return
        candidates = [
            self._candidate(attempt, taken[job_id])
            for job_id, attempt in self.running.items()
            if attempt.saves_from is None and attempt.began < self.now
        ]
        known = {each.job_id for each in candidates}
        staying = [
            held for id, held in taken.items() if id not in known and held.ends_by > at(self.now)
        ]
        started = (each.job for each in decisions if each.starts)
        staying += [Running(job.demand, at(self.now) + job.max_runtime) for job in started]
        chosen = victims(_CLUSTER.nodes, staying, candidates, reserved, at(self.now), "low")
        for each in chosen:
            attempt = self.running[each.job_id]
            ends = min(attempt.ends, self.now + SAVE_HOURS)
            self.running[each.job_id] = attempt._replace(ends=ends, saves_from=self.now)
            heapq.heappush(self._moments, ends)
            self.cost.preemptions += 1

    def _candidate(self, attempt: Attempt, held: Running) -> Candidate:
        job = attempt.job
        unsaved = (self.now - attempt.began) % CHECKPOINT_HOURS
        rank = Rank(not job.tenant.preemptible, 0)
        return Candidate(job.id, 1, rank, at(self.now - unsaved), at(attempt.began), held)

    def _held(self, attempt: Attempt) -> Running:
        job = attempt.job
        known = {str(node): workers for node, workers in attempt.placement.items()}
        ends_by = attempt.began + job.limit if attempt.saves_from is None else self.now
        return Running(
            job.demand,
            at(max(ends_by, self.now)),
            account_id=job.account.id,
            placement=known if self.now >= attempt.began + REPORT_HOURS else None,
            tenant=job.tenant.name,
            job_id=job.id,
        )

    def _queued(self, job: Job) -> Queued:
        tenant = job.tenant
        is_first = job.account == tenant.accounts()[0]
        return Queued(
            job.id,
            0,
            job.demand,
            timedelta(hours=job.limit),
            account_id=job.account.id,
            quota=tenant.token_quota if is_first else NO_QUOTA,
            tenant=tenant.name,
            tenant_quota=tenant.quota,
            preemptible=tenant.preemptible,
        )

    def _start(self, job: Job) -> None:
        placement = place(self.free, job.demand)
        assert placement is not None, "admission promised room that does not exist"
        if job.started is None:
            job.started = self.now
            if not job.tenant.preemptible:
                self.waits.append((self.now - job.submitted, job))
        self.running[job.id] = Attempt(job, placement, self.now, self.now + job.left)
        heapq.heappush(self._moments, self.now + job.left)

    def _end(self, attempt: Attempt) -> None:
        job = attempt.job
        del self.running[job.id]
        worker = job.demand.worker
        for node, workers in attempt.placement.items():
            room = self.free[node]
            self.free[node] = Room(
                room.cpus + workers * worker.cpus, room.gpus + workers * worker.gpus, room.memory
            )
        if attempt.saves_from is None:
            return
        trained, repeated = attempt.saves_from - attempt.began, 0.0
        if self.rng.random() < FAILED_SAVES:
            repeated = trained % CHECKPOINT_HOURS
            self.cost.failed_saves += 1
        self.cost.repeated_gpu_hours += repeated * job.demand.gpus
        self.cost.saving_gpu_hours += (attempt.ends - attempt.saves_from) * job.demand.gpus
        job.left -= trained - repeated
        if job.left > 0:
            self.queue[job.id] = job


def compute_results(simulation: Simulation) -> dict[str, Any]:
    """Return what the limits are about."""
    used, hours = simulation.used, simulation.now
    waiting = [tenant for tenant in TENANTS if tenant.waiting and tenant.quota == NO_QUOTA]
    waiting = [tenant for tenant in waiting if not tenant.preemptible]
    all_used = sum(used[tenant.name] for tenant in waiting)
    all_weights = sum(tenant.weight for tenant in waiting)
    shares = {
        tenant.name: {
            "weight": tenant.weight,
            "of_weights": round(tenant.weight / all_weights, 4),
            "of_gpu_hours": round(used[tenant.name] / all_used, 4),
        }
        for tenant in waiting
    }
    longest = {
        tenant.name: round(max(wait for wait, job in simulation.waits if job.tenant is tenant), 1)
        for tenant in TENANTS
        if not tenant.preemptible
    }
    # Those that still wait count with what they have waited.
    waits = simulation.waits + [
        (hours - job.submitted, job)
        for job in simulation.queue.values()
        if job.started is None and not job.tenant.preemptible
    ]
    nearest, job = max(((wait / job.bound, job) for wait, job in waits), key=lambda pair: pair[0])
    lost = simulation.cost.repeated_gpu_hours + simulation.cost.saving_gpu_hours
    return {
        "hours": round(hours),
        "jobs": len(waits),
        "use": round(sum(used.values()) / (hours * _ALL_GPUS), 4),
        "gpu_hours": {name: round(amount) for name, amount in used.items()},
        "shares": shares,
        "longest_wait_hours": longest,
        "longest_wait_of_its_bound": round(nearest, 3),
        "its_bound_hours": round(job.bound, 1),
        "bound_of_the_oldest_of_a_token_hours": LONGEST_TURN,
        "waits_beyond_bound": sum(wait > job.bound for wait, job in waits),
        "preemptions": simulation.cost.preemptions,
        "failed_saves": simulation.cost.failed_saves,
        "repeated_gpu_hours": round(simulation.cost.repeated_gpu_hours, 1),
        "saving_gpu_hours": round(simulation.cost.saving_gpu_hours, 1),
        "lost_of_preemptible_gpu_hours": round(lost / used["idle"], 4),
    }


def within_limits(result: dict[str, Any]) -> bool:
    """Whether no job starved, shares are in proportion to the weights, and preemption cost little."""
    in_proportion = all(
        share["of_gpu_hours"] >= LEAST_OF_SHARE * share["of_weights"]
        for share in result["shares"].values()
    )
    cheap = result["lost_of_preemptible_gpu_hours"] <= MOST_LOST
    return in_proportion and cheap and result["waits_beyond_bound"] == 0


def main() -> int:
    """Run, print a table and write the results; return 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=HOURS, help="simulated hours")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    results: dict[str, dict[str, Any]] = {}
    for load, quiet_weekends in (("always busy", False), ("quiet weekends", True)):
        began, simulation = time.process_time(), Simulation(random.Random(SEED), quiet_weekends)
        simulation.run(arguments.hours)
        result = compute_results(simulation)
        result["within_limits"] = within_limits(result)
        result["cpu_seconds"] = round(time.process_time() - began, 1)
        results[load] = result
    table = Table("result", *results)
    for name in next(iter(results.values())):
        table.add_row(name, *(str(result[name]) for result in results.values()))
    Console().print(table)
    write_results(arguments.output, {"machine": machine(), "results": results})
    return 0 if all(result["within_limits"] for result in results.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
