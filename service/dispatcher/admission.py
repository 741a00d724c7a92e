"""Whether a job's workers all fit at once. Ray does not queue: what does not fit would hang there.

Only what DASL itself runs is counted as taken: it is known at once, while Ray's own figures lag
behind and would hold back a job for seconds after another one ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from service.dispatcher.executor import Cluster


@dataclass(frozen=True)
class Demand:
    """What one job takes: workers that each must fit on one node. Its driver takes nothing."""

    workers: int
    cpus_per_worker: float
    gpus_per_worker: float

    @classmethod
    def of(cls, resources: dict[str, Any]) -> Demand:
        """From the `resources` of a resolved spec."""
        return cls(
            workers=int(resources["workers"]),
            cpus_per_worker=float(resources["cpus_per_worker"]),
            gpus_per_worker=float(resources["gpus_per_worker"]),
        )

    @property
    def cpus(self) -> float:
        """CPUs of all workers."""
        return self.workers * self.cpus_per_worker

    @property
    def gpus(self) -> float:
        """GPUs of all workers."""
        return self.workers * self.gpus_per_worker

    def __str__(self) -> str:
        wants = [f"{self.cpus:g} CPUs"] if self.cpus else []
        wants += [f"{self.gpus:g} GPUs"] if self.gpus else []
        return " and ".join(wants) or "no CPU"


def obstacle(cluster: Cluster, taken: Iterable[Demand], demand: Demand) -> str | None:
    """What keeps a job from starting now, in words for its owner; `None`: it fits."""
    never = misfit(cluster, demand)
    if never is not None:
        return never
    taken = list(taken)
    cpus, gpus = sum(other.cpus for other in taken), sum(other.gpus for other in taken)
    if demand.cpus > cluster.total_cpus - cpus or demand.gpus > cluster.total_gpus - gpus:
        in_use = [f"{cpus:g} of {cluster.total_cpus:g} CPUs"]
        if cluster.total_gpus:
            in_use.append(f"{gpus:g} of {cluster.total_gpus:g} GPUs")
        return f"Waiting for {demand}: {' and '.join(in_use)} are in use"
    return None


def misfit(cluster: Cluster, demand: Demand) -> str | None:
    """Why a job would not fit even if nothing else ran; `None`: it would."""
    places = sum(_places(node.total_cpus, node.total_gpus, demand) for node in cluster.nodes)
    if places >= demand.workers:
        return None
    return (
        f"Waiting for more machines: {demand.workers} workers with {demand} in all do not fit on "
        f"{len(cluster.nodes)} nodes with {cluster.total_cpus:g} CPUs and "
        f"{cluster.total_gpus:g} GPUs in all"
    )


def _places(cpus: float, gpus: float, demand: Demand) -> int:
    places = float(demand.workers)
    if demand.cpus_per_worker:
        places = min(places, cpus // demand.cpus_per_worker)
    if demand.gpus_per_worker:
        places = min(places, gpus // demand.gpus_per_worker)
    return int(places)
