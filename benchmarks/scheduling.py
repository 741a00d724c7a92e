"""Use of a cluster by the scheduler: ``python -m benchmarks.scheduling``.

The real admission (`service.scheduling.admission`) starts jobs on a simulated cluster of 8 nodes with 64 CPUs and 8
GPUs each, on which jobs with different numbers of CPUs for each GPU always wait. It learns where the ranks of a job
are one minute after the job starts, as from a real attempt. Its use of the GPUs is compared with that of a strict
FIFO that always knows all placements, and must reach 95 % of it.

Then rooms for workers are computed on random clusters, some of whose workers have an unknown place. A job must never
be promised room that does not exist.
"""

import argparse
import heapq
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine, write_results
from service.scheduling.admission import Queued, Running, decide
from service.scheduling.nodes import Cluster, Node
from service.scheduling.occupancy import Occupancy
from service.scheduling.packing import Demand, Room, Worker, places

RESULTS = Path(__file__).parent / "results" / "scheduling.json"
REQUIRED = 0.95
NODES, CPUS, GPUS = 8, 64, 8
HOURS, WAITING, SEEDS = 200.0, 12, 3
MIXES = ([1, 8], [1, 4, 8], [4, 8])
REPORT_HOURS = 1 / 60
DEFAULT_LIMIT_HOURS = 24.0
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def main() -> int:
    """Run, print tables and write the results; return 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--placements", type=int, default=100_000, help="random clusters")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    uses = [compare(mix, exact) for exact in (True, False) for mix in MIXES]
    show(uses)
    promises = check_promises(arguments.placements)
    print(promises)
    document = {"machine": machine(), "use": uses, "promises": promises}
    write_results(arguments.output, document)
    kept = promises["too_many"] == 0
    return 0 if kept and all(use["within_limit"] for use in uses) else 1


@dataclass(frozen=True)
class Job:
    """A job that runs for `takes` hours and may run for `limit` hours."""

    id: int
    demand: Demand
    takes: float
    limit: float


@dataclass
class Placed:
    """A running job; its placement is known from the hour `known` on."""

    job: Job
    placement: Counter[int]
    started: float
    known: float


@dataclass
class Simulation:
    """A cluster whose GPUs are filled best fit first, with a queue that is never empty."""

    mix: Sequence[int]
    exact_limits: bool
    rng: random.Random
    now: float = 0.0
    free: list[Room] = field(default_factory=lambda: [Room(CPUS, GPUS)] * NODES)
    queue: list[Job] = field(default_factory=list)
    running: dict[int, Placed] = field(default_factory=dict)
    submitted: int = 0
    gpu_hours: float = 0.0

    def run(self, *, fifo: bool) -> float:
        """Return the share of all GPU hours that jobs used."""
        moments = [0.0]
        while moments and moments[0] < HOURS:
            now = heapq.heappop(moments)
            self.gpu_hours += (now - self.now) * sum(
                placed.job.demand.gpus for placed in self.running.values()
            )
            self.now = now
            for placed in [*self.running.values()]:
                if placed.started + placed.job.takes <= now:
                    self._end(placed)
            self._submit()
            for job in self._fifo() if fifo else self._admitted():
                placed = self._start(job)
                heapq.heappush(moments, placed.started + job.takes)
                heapq.heappush(moments, placed.known)
        return self.gpu_hours / (self.now * NODES * GPUS)

    def _submit(self) -> None:
        while len(self.queue) < WAITING:
            workers, cpus = self.rng.choice([1, 1, 1, 2, 4, 8]), self.rng.choice(self.mix)
            takes = self.rng.uniform(1, 12)
            limit = takes if self.exact_limits else DEFAULT_LIMIT_HOURS
            job = Job(self.submitted, Demand(workers, Worker(cpus, 1)), takes, limit)
            self.queue.append(job)
            self.submitted += 1

    def _fifo(self) -> list[Job]:
        free, started = self.free.copy(), []
        for job in self.queue:
            if place(free, job.demand) is None:
                break
            started.append(job)
        return started

    def _admitted(self) -> list[Job]:
        nodes = (Node(str(n), "", CPUS, GPUS, 0, 0) for n in range(NODES))
        held = [self._held(placed) for placed in self.running.values()]
        queue = [
            Queued(str(job.id), 0, job.demand, timedelta(hours=job.limit)) for job in self.queue
        ]
        decisions = decide(Cluster(tuple(nodes)), held, queue, at(self.now))
        return [job for job, decision in zip(self.queue, decisions, strict=True) if decision.starts]

    def _held(self, placed: Placed) -> Running:
        known = {str(node): workers for node, workers in placed.placement.items()}
        return Running(
            placed.job.demand,
            at(placed.started + placed.job.limit),
            placement=known if placed.known <= self.now else None,
        )

    def _start(self, job: Job) -> Placed:
        placement = place(self.free, job.demand)
        assert placement is not None, "admission promised room that does not exist"
        placed = Placed(job, placement, self.now, self.now + REPORT_HOURS)
        self.running[job.id] = placed
        self.queue.remove(job)
        return placed

    def _end(self, placed: Placed) -> None:
        cpus, gpus, _ = placed.job.demand.worker
        for node, workers in placed.placement.items():
            room = self.free[node]
            self.free[node] = Room(room.cpus + workers * cpus, room.gpus + workers * gpus)
        del self.running[placed.job.id]


def at(hour: float) -> datetime:
    """Return the time at an hour of a simulation."""
    return BEGAN + timedelta(hours=hour)


def place(free: list[Room], demand: Demand) -> Counter[int] | None:
    """Take room for all workers, each on the fullest node with room; return how many are on each."""
    before, placement = free.copy(), Counter[int]()
    for _ in range(demand.workers):
        fitting = [n for n, room in enumerate(free) if room.places(demand.worker)]
        if not fitting:
            free[:] = before
            return None
        node = min(fitting, key=lambda n: (free[n].gpus, free[n].cpus))
        room = free[node]
        free[node] = Room(room.cpus - demand.worker.cpus, room.gpus - demand.worker.gpus)
        placement[node] += 1
    return placement


def compare(mix: Sequence[int], exact_limits: bool) -> dict[str, Any]:
    """Return the mean GPU use of admission and of the FIFO over the seeds."""
    uses = {
        name: sum(
            Simulation(mix, exact_limits, random.Random(seed)).run(fifo=name == "fifo")
            for seed in range(SEEDS)
        )
        / SEEDS
        for name in ("admission", "fifo")
    }
    return {
        "cpus_per_worker": list(mix),
        "limits": "exact" if exact_limits else f"{DEFAULT_LIMIT_HOURS:g} h",
        **{name: round(use, 4) for name, use in uses.items()},
        "within_limit": uses["admission"] >= REQUIRED * uses["fifo"],
    }


def check_promises(count: int) -> dict[str, Any]:
    """Compute rooms on random clusters; count those that promise more than what is free."""
    rng, began = random.Random(0), time.perf_counter()
    too_many = too_cautious = 0
    for _ in range(count):
        sizes = [Room(rng.randint(0, 16), rng.randint(0, 4)) for _ in range(rng.randint(1, 5))]
        nodes = [Node(str(n), "", *size[:2], 0, 0) for n, size in enumerate(sizes)]
        occupancy, free, share = Occupancy(nodes), sizes.copy(), rng.random()
        for _ in range(rng.randint(0, 14)):
            worker, node = random_worker(rng), rng.randrange(len(free))
            if free[node].places(worker):
                free[node] = Room(free[node].cpus - worker.cpus, free[node].gpus - worker.gpus)
                known = {str(node): 1} if rng.random() < share else None
                occupancy.change(Demand(1, worker), known, +1)
        worker = random_worker(rng)
        most = places(free, worker)
        too_many += occupancy.fits(Demand(most + 1, worker))
        too_cautious += most > 0 and not occupancy.fits(Demand(most, worker))
    return {
        "clusters": count,
        "too_many": too_many,
        "too_cautious": too_cautious,
        "seconds": round(time.perf_counter() - began, 1),
    }


def random_worker(rng: random.Random) -> Worker:
    """Return a worker of a random size."""
    return Worker(rng.randint(1, 6), rng.randint(0, 2))


def show(uses: Sequence[dict[str, Any]]) -> None:
    """Print a table."""
    table = Table("CPUs per worker", "max_hours", "admission", "FIFO", "of FIFO")
    for use in uses:
        table.add_row(
            str(use["cpus_per_worker"]),
            use["limits"],
            f"{use['admission']:.1%}",
            f"{use['fifo']:.1%}",
            f"{use['admission'] / use['fifo']:.1%}" + ("" if use["within_limit"] else " (low)"),
        )
    Console().print(table)


if __name__ == "__main__":
    raise SystemExit(main())
