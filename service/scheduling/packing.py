"""Packing: how many workers are certain to fit on nodes, for any placement of other workers.

Ray places workers, and DASL learns their nodes when the attempt reports them. Until then they may be on any node
(`occupancy` counts both kinds). A job fits only if it fits for every placement that Ray may have chosen, so that a
submitted job never hangs for lack of room. This is exact on one node, or if all starting workers are alike. Otherwise
it is conservative: a job may wait although it would fit.
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
    def from_resources(cls, resources: Resources) -> Worker:
        """Return the resources of each worker of a spec, with the smallest number in place of "auto"."""
        memory = int((resources.memory_gb_per_worker or 0) * BYTES_PER_GB)
        cpus, gpus = resources.cpus_per_worker, resources.gpus_per_worker
        return cls(1 if cpus == "auto" else cpus, 0 if gpus == "auto" else gpus, memory)


class Demand(NamedTuple):
    """Resources of one job: workers that start together. The driver needs none."""

    workers: int
    worker: Worker
    choice: NodeChoice = ANY_NODE

    @classmethod
    def from_resources(cls, resources: Resources) -> Demand:
        """Return the demand of a spec's `resources`."""
        return cls(
            resources.workers,
            Worker.from_resources(resources),
            NodeChoice.from_resources(resources),
        )

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
        """Return the same demand with these nodes, given by id, excluded."""
        excluded = self.choice.excluded.union(nodes)
        return self._replace(choice=self.choice._replace(excluded=excluded))

    def __str__(self) -> str:
        return amount(self.cpus, self.gpus, self.memory)


class Room(NamedTuple):
    """Total or free resources of one node."""

    cpus: float
    gpus: float
    memory: float = 0.0

    @classmethod
    def from_node(cls, node: Node) -> Room:
        """Return all resources of a node."""
        return cls(node.total_cpus, node.total_gpus, node.total_memory)

    def without(self, worker: Worker, count: int) -> Room:
        """Return the room that a number of such workers leaves, which is negative if they do not fit."""
        return Room(
            self.cpus - count * worker.cpus,
            self.gpus - count * worker.gpus,
            self.memory - count * worker.memory,
        )

    def places(self, worker: Worker) -> int:
        """Return the number of such workers that fit."""
        places = self.cpus // worker.cpus
        if worker.gpus:
            places = min(places, self.gpus // worker.gpus)
        if worker.memory:
            places = min(places, self.memory // worker.memory)
        return max(0, int(places))


def sure_places(rooms: Sequence[Room], others: Counter[Worker], worker: Worker) -> int:
    """Return a lower bound on the number of such workers that fit, for any placement of the others.

    It is the number of places without the others, minus the most places that the others can take.
    """
    hosts = [room for room in rooms if room.places(worker)]
    if len(hosts) == 1:
        (host,) = hosts
        for other, number in others.items():
            host = host.without(other, number)
        return host.places(worker)
    lost = lost_one_by_one = cpus_beyond = count = 0
    for other, number in others.items():
        # A worker with GPUs takes the places of its GPUs and the CPUs that belong to these places. Only its
        # remaining CPUs may take more places, like the CPUs of a worker without GPUs.
        gpu_places = math.ceil(other.gpus / worker.gpus) if worker.gpus else 0
        lost += number * gpu_places
        further_cpus = other.cpus - gpu_places * worker.cpus
        if further_cpus > 0:
            lost_one_by_one += number * math.ceil(further_cpus / worker.cpus)
            cpus_beyond += number * further_cpus
            count += number
        if worker.memory:
            # Its memory may take more places than its GPUs do.
            lost += number * max(0, math.ceil(other.memory / worker.memory) - gpu_places)
    # Two bounds for workers that compete only for CPUs; use the tighter one.
    lost += min(lost_one_by_one, _most_lost(hosts, worker, cpus_beyond, count))
    return max(0, places(hosts, worker) - lost)


def places(rooms: Sequence[Room], worker: Worker) -> int:
    """Return the number of such workers that fit if nothing else takes room."""
    return sum(room.places(worker) for room in rooms)


def most_places(nodes: Sequence[Node], demand: Demand) -> int:
    """Return the number of workers of a job that fit on those of these nodes that it may use, if they are empty."""
    rooms = [
        Room.from_node(node).places(demand.worker) for node in nodes if demand.choice.allows(node)
    ]
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
