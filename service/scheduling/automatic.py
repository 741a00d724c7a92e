"""Choose `resources.gpus_per_worker: auto` and `cpus_per_worker: auto` once, before the first attempt.

GPUs: a worker gets one if a node that its job may use has a GPU for it, and the job's quotas allow any. If the nodes
are known at submission, it is decided then, and the job waits for GPUs that are missing later. Otherwise it is decided
when the job starts.

CPUs: decided when the job starts. A node's share is its CPUs divided by its GPUs, so that all GPUs stay usable, or
all its CPUs if it has no GPU. The worker gets the smallest share among the nodes that it fits on and that have at least
half the largest share, reduced so that as many workers fit as with one CPU each. A share therefore never prevents a
job from starting on empty nodes.

From the first attempt on, the numbers are part of the resolved spec and never change: the number of threads decides
the last bits of a result on CPUs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from dasl_core.spec import Resources
from service.scheduling.nodes import Node
from service.scheduling.packing import Demand, Room, most_places
from service.settings import ClusterLimit

MOST_CPUS_WITH_GPU = 16
"""Decoding and augmentation for one GPU seldom use more CPUs; jobs without GPUs get the rest."""
MOST_CPUS = 64
"""Training on CPUs gains little from more threads."""


class Automatic(NamedTuple):
    """Which numbers of a job's workers the service still has to choose."""

    cpus: bool = False
    gpus: bool = False

    @classmethod
    def from_resources(cls, resources: Resources) -> Automatic:
        """Return the numbers that are "auto" in a spec's `resources`."""
        return cls(resources.cpus_per_worker == "auto", resources.gpus_per_worker == "auto")


NOTHING = Automatic()


def has_gpus(demand: Demand, nodes: Sequence[Node], limit: ClusterLimit = None) -> bool:
    """Whether a node that a job may use, even a busy or drained one, has a GPU for one of its workers.

    Args:
        limit: the largest cluster; ignored for jobs with `node_labels`, because the limit has no labels.
    """
    worker = demand.worker._replace(gpus=1)
    if any(demand.choice.allows(node) and Room.from_node(node).places(worker) for node in nodes):
        return True
    if not isinstance(limit, tuple) or demand.choice.labels:
        return False
    return any(Room(cpus, gpus).places(worker._replace(memory=0)) for _, cpus, gpus in limit)


def choose(demand: Demand, automatic: Automatic, nodes: Sequence[Node], *, gpus: bool) -> Demand:
    """Return a demand with the numbers that the service chooses.

    Args:
        demand: a demand with the smallest numbers in place of "auto".
        nodes: the nodes of the cluster, without the resources that other programs use.
        gpus: whether each worker gets a GPU, if the service chooses that.
    """
    worker = demand.worker
    if automatic.gpus:
        # A GPU type in the spec requests a GPU.
        worker = worker._replace(gpus=int(gpus or demand.choice.gpu_type is not None))
    demand = demand._replace(worker=worker)
    if automatic.cpus:
        demand = demand._replace(worker=worker._replace(cpus=_share(demand, _hosts(demand, nodes))))
    return demand


def _hosts(demand: Demand, nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes that decide the share."""
    usable = [node for node in nodes if demand.choice.allows(node) and not node.drained]
    if not demand.worker.gpus:
        # Leave the CPUs of nodes with GPUs to workers with GPUs.
        without = [node for node in usable if not node.total_gpus]
        usable = without if most_places(without, demand) >= demand.workers else usable
    least = demand.workers if demand.choice.same_node else 1
    least = max(1, min(least, most_places(usable, demand)))
    return [node for node in usable if Room.from_node(node).places(demand.worker) >= least]


def _share(demand: Demand, nodes: Sequence[Node]) -> int:
    """Return the CPUs of each worker.

    Args:
        demand: the job's demand with one CPU per worker.
        nodes: nodes on which a worker fits.
    """
    if not nodes:
        return 1
    shares = [int(node.total_cpus // max(1, int(node.total_gpus))) for node in nodes]
    # A small head node must not limit the share on large nodes.
    most = min(share for share in shares if 2 * share >= max(shares))
    most = min(most, MOST_CPUS_WITH_GPU if demand.worker.gpus else MOST_CPUS)
    workers = min(demand.workers, most_places(nodes, demand))

    def too_many(cpus: int) -> bool:
        worker = demand.worker._replace(cpus=cpus)
        return most_places(nodes, demand._replace(worker=worker)) < workers

    return max(1, bisect_left(range(1, most + 1), True, key=too_many))
