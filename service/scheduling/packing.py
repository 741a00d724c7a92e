"""Packing: how many workers are certain to fit on nodes, for any placement of other workers.

Ray places workers, and DASL learns where they are when an attempt reports it. Until then they may be on
any node (`occupancy` knows both kinds). A job counts as fitting only if it fits for every placement that
Ray may have chosen, so a submitted job never hangs for lack of room. While workers of other sizes start
on several nodes this is conservative: a job may wait although it would fit. On one node, or if all
starting workers are alike, the answer is exact.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from dasl_core.spec import Resources
from service.scheduling.nodes import ANY_NODE, Node, NodeChoice

BYTES_PER_GB = 10**9


class Worker(NamedTuple):
    """Resources of one worker on its node: one CPU or more, whole GPUs, and bytes of memory."""

    cpus: int
    gpus: int
    memory: int = 0

    @classmethod
    def of(cls, resources: Resources) -> Worker:
        """Return what each worker of a spec's `resources` needs; the least in place of "auto"."""
        memory = int((resources.memory_gb_per_worker or 0) * BYTES_PER_GB)
        cpus, gpus = resources.cpus_per_worker, resources.gpus_per_worker
        return cls(1 if cpus == "auto" else cpus, 0 if gpus == "auto" else gpus, memory)


class Demand(NamedTuple):
    """Resources of one job: workers that start together. Its driver takes nothing."""

    workers: int
    worker: Worker
    choice: NodeChoice = ANY_NODE

    @classmethod
    def of(cls, resources: Resources) -> Demand:
        """Return the demand of a spec's `resources`."""
        return cls(resources.workers, Worker.of(resources), NodeChoice.of(resources))

    @property
    def cpus(self) -> int:
        """CPUs of all workers."""
        return self.workers * self.worker.cpus

    @property
    def gpus(self) -> int:
        """GPUs of all workers."""
        return self.workers * self.worker.gpus

    @property
    def memory(self) -> int:
        """Bytes of memory of all workers."""
        return self.workers * self.worker.memory

    def without(self, nodes: Collection[str]) -> Demand:
        """Return the same demand for other nodes than these, which are given by id."""
        excluded = self.choice.excluded.union(nodes)
        return self._replace(choice=self.choice._replace(excluded=excluded))

    def __str__(self) -> str:
        return amount(self.cpus, self.gpus, self.memory)


class Room(NamedTuple):
    """Resources of one node, or what is left of them."""

    cpus: float
    gpus: float
    memory: float = 0.0

    @classmethod
    def of(cls, node: Node) -> Room:
        """Return all resources of a node."""
        return cls(node.total_cpus, node.total_gpus, node.total_memory)

    def places(self, worker: Worker) -> int:
        """Return how many such workers fit."""
        places = self.cpus // worker.cpus
        if worker.gpus:
            places = min(places, self.gpus // worker.gpus)
        if worker.memory:
            places = min(places, self.memory // worker.memory)
        return max(0, int(places))


def sure_places(rooms: Sequence[Room], others: Counter[Worker], worker: Worker) -> int:
    """Return a lower bound on how many such workers fit, for any placement of the others.

    It is the number of places without the others, minus the most that these can take.
    """
    hosts = [room for room in rooms if room.places(worker)]
    if len(hosts) == 1:
        (host,) = hosts
        cpus = host.cpus - sum(other.cpus * count for other, count in others.items())
        gpus = host.gpus - sum(other.gpus * count for other, count in others.items())
        memory = host.memory - sum(other.memory * count for other, count in others.items())
        return Room(cpus, gpus, memory).places(worker)
    lost = lost_one_by_one = cpus_beyond = count = 0
    for other, number in others.items():
        # A worker with GPUs takes the places of its GPUs, and uses their CPUs. Only its further CPUs may
        # take more places, as those of a worker without GPUs do.
        gpu_places = math.ceil(other.gpus / worker.gpus) if worker.gpus else 0
        lost += number * gpu_places
        further_cpus = other.cpus - gpu_places * worker.cpus
        if further_cpus > 0:
            lost_one_by_one += number * math.ceil(further_cpus / worker.cpus)
            cpus_beyond += number * further_cpus
            count += number
        if worker.memory:
            # Beyond the places that its GPUs take, its memory may take more.
            lost += number * max(0, math.ceil(other.memory / worker.memory) - gpu_places)
    # Two bounds for workers that compete for CPUs only; use the tighter one.
    lost += min(lost_one_by_one, _most_lost(hosts, worker, cpus_beyond, count))
    return max(0, places(hosts, worker) - lost)


def places(rooms: Sequence[Room], worker: Worker) -> int:
    """Return the number of workers of this kind that fit if nothing else takes room."""
    return sum(room.places(worker) for room in rooms)


def most_places(nodes: Sequence[Node], demand: Demand) -> int:
    """Return how many workers of a job fit on nodes that are empty, of those that it may use."""
    rooms = [Room.of(node).places(demand.worker) for node in nodes if demand.choice.allows(node)]
    return max(rooms, default=0) if demand.choice.same_node else sum(rooms)


def amount(cpus: float, gpus: float, memory: float = 0.0) -> str:
    """Format resources for messages, such as "1 CPU, 2 GPUs and 8 GB of memory"."""
    parts = [_count(cpus, "CPU")]
    if gpus:
        parts.append(_count(gpus, "GPU"))
    if memory:
        parts.append(f"{memory / BYTES_PER_GB:.6g} GB of memory")
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def _count(number: float, unit: str) -> str:
    return f"{number:.12g} {unit}" + ("" if number == 1 else "s")


def _most_lost(hosts: Sequence[Room], worker: Worker, cpus: int, count: int) -> int:
    """Return the most places that `count` other workers with `cpus` CPUs in total can take.

    Each node has some CPUs beyond the places of `worker`. The others must fill these before they take
    the first place there, and need `worker.cpus` more for each further place. They take most on the
    nodes with the fewest such CPUs.
    """
    sizes = [host.places(worker) for host in hosts]
    spare_cpus = [
        math.floor(host.cpus) - size * worker.cpus for host, size in zip(hosts, sizes, strict=True)
    ]
    worst = reachable = 0
    cpus_left = cpus
    by_harm = zip(sorted(spare_cpus), sorted(sizes, reverse=True), strict=True)
    for occupied, (spare, size) in enumerate(by_harm, start=1):
        cpus_left -= spare + 1
        reachable += size
        if cpus_left < 0 or occupied > count:
            break
        worst = max(worst, min(reachable, occupied + cpus_left // worker.cpus))
    return worst
