"""Packing: whether all workers of a job are certain to fit, for any placement of the running ones.

DASL knows the CPUs and GPUs of every node and the exact total that its own attempts take. It does not
know which worker is on which node: Ray places them, and Ray's usage by node lags behind and names no
job. So a job fits only if it fits for every placement that Ray may have chosen; a submitted job never
hangs for lack of room. With workers of different sizes on several nodes this is conservative: a job may
wait although it would fit. On one node, or if all workers are alike, the answer is exact.

Only DASL's own workers count as taken.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from dasl_core.spec import Resources
from service.scheduling.nodes import Node


class Worker(NamedTuple):
    """Resources of one worker on its node: one CPU or more, and whole GPUs."""

    cpus: int
    gpus: int


class Demand(NamedTuple):
    """Resources of one job: workers that start together. Its driver takes nothing."""

    workers: int
    worker: Worker

    @classmethod
    def of(cls, resources: Resources) -> Demand:
        """Return the demand of a spec's `resources`."""
        worker = Worker(resources.cpus_per_worker, resources.gpus_per_worker)
        return cls(resources.workers, worker)

    @property
    def cpus(self) -> int:
        """CPUs of all workers."""
        return self.workers * self.worker.cpus

    @property
    def gpus(self) -> int:
        """GPUs of all workers."""
        return self.workers * self.worker.gpus

    def __str__(self) -> str:
        return _count(self.cpus, "CPU") + (f" and {_count(self.gpus, 'GPU')}" if self.gpus else "")


def fits(nodes: Sequence[Node], taken: Counter[Worker], demand: Demand) -> bool:
    """Whether all workers of a job fit beside the running ones, for any placement of these."""
    return sure_places(nodes, taken, demand.worker) >= demand.workers


def sure_places(nodes: Sequence[Node], taken: Counter[Worker], worker: Worker) -> int:
    """Return a lower bound on how many such workers fit, for any placement of those in `taken`.

    It is the number of places on the empty nodes, minus the most that the others can take.
    """
    hosts = [node for node in nodes if _places(node.total_cpus, node.total_gpus, worker)]
    if len(hosts) == 1:
        (node,) = hosts
        cpus = node.total_cpus - sum(other.cpus * count for other, count in taken.items())
        gpus = node.total_gpus - sum(other.gpus * count for other, count in taken.items())
        return _places(cpus, gpus, worker)
    lost = lost_one_by_one = cpus = count = 0
    for other, number in taken.items():
        # A worker with GPUs takes the places of its GPUs, and uses their CPUs. Only its further CPUs may
        # take more places, as those of a worker without GPUs do.
        gpu_places = math.ceil(other.gpus / worker.gpus) if worker.gpus else 0
        lost += number * gpu_places
        further_cpus = other.cpus - gpu_places * worker.cpus
        if further_cpus > 0:
            lost_one_by_one += number * math.ceil(further_cpus / worker.cpus)
            cpus += number * further_cpus
            count += number
    # Two bounds for workers that compete for CPUs only; use the tighter one.
    lost += min(lost_one_by_one, _most_lost(hosts, worker, cpus, count))
    return max(0, empty_places(hosts, worker) - lost)


def empty_places(nodes: Sequence[Node], worker: Worker) -> int:
    """Return the number of workers of this kind that fit on the empty nodes."""
    return sum(_places(node.total_cpus, node.total_gpus, worker) for node in nodes)


def _count(number: int, unit: str) -> str:
    return f"{number} {unit}" + ("" if number == 1 else "s")


def _places(cpus: float, gpus: float, worker: Worker) -> int:
    places = cpus // worker.cpus
    if worker.gpus:
        places = min(places, gpus // worker.gpus)
    return max(0, int(places))


def _most_lost(hosts: Sequence[Node], worker: Worker, cpus: int, count: int) -> int:
    """Return the most places that `count` other workers with `cpus` CPUs in total can take.

    Each node has some CPUs beyond the places of `worker`. The others must fill these before they take
    the first place there, and need `worker.cpus` more for each further place. They take most on the
    nodes with the fewest such CPUs.
    """
    places = [_places(node.total_cpus, node.total_gpus, worker) for node in hosts]
    spare_cpus = [
        math.floor(node.total_cpus) - node_places * worker.cpus
        for node, node_places in zip(hosts, places, strict=True)
    ]
    worst = reachable = 0
    cpus_left = cpus
    by_harm = zip(sorted(spare_cpus), sorted(places, reverse=True), strict=True)
    for occupied, (spare, node_places) in enumerate(by_harm, start=1):
        cpus_left -= spare + 1
        reachable += node_places
        if cpus_left < 0 or occupied > count:
            break
        worst = max(worst, min(reachable, occupied + cpus_left // worker.cpus))
    return worst
