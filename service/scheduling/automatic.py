"""The numbers for `resources.gpus_per_worker: auto` and `cpus_per_worker: auto`, decided once, before the first attempt.

A worker gets a GPU if a node that its job may use has one for it, and the job's quotas allow any. If that is known when
the job is submitted, it is decided then: a job that was to have GPUs waits for them while they are away. Otherwise
the nodes decide when it starts.

The CPUs of a worker are decided when the job starts. They are a share of the smallest node that it fits on, of those
with at least half the share of the largest: the node's CPUs divided by its GPUs, so that all of its GPUs stay usable,
or on a node without GPUs as many as its job's workers can have each. No fewer of the job's workers fit than would with
one CPU each, so a share never keeps a job from starting on empty nodes.

From the first attempt on, the numbers are part of the resolved spec and stay: the number of threads decides the last
bits of a result on CPUs.
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
"""Decoding and augmentation of images for one GPU seldom use more; jobs without GPUs get the rest."""
MOST_CPUS = 64
"""Training on CPUs gains little from further threads."""


class Automatic(NamedTuple):
    """Which numbers of a job's workers are left to the service, and not decided yet."""

    cpus: bool = False
    gpus: bool = False

    @classmethod
    def of(cls, resources: Resources) -> Automatic:
        """Return what a spec's `resources` leave open."""
        return cls(resources.cpus_per_worker == "auto", resources.gpus_per_worker == "auto")


NOTHING = Automatic()


def has_gpus(demand: Demand, nodes: Sequence[Node], limit: ClusterLimit = None) -> bool:
    """Whether a node that a job may use has a GPU for one of its workers, however busy or drained it is.

    Args:
        limit: the largest cluster, which counts for jobs without `node_labels`: the labels of its nodes are not known.
    """
    worker = demand.worker._replace(gpus=1)
    if any(demand.choice.allows(node) and Room.of(node).places(worker) for node in nodes):
        return True
    if not isinstance(limit, tuple) or demand.choice.labels:
        return False
    return any(Room(cpus, gpus).places(worker._replace(memory=0)) for _, cpus, gpus in limit)


def choose(demand: Demand, automatic: Automatic, nodes: Sequence[Node], *, gpus: bool) -> Demand:
    """Return a demand with the numbers that are left to the service.

    Args:
        demand: with the least in their place.
        nodes: that there are, without what other programs use of them.
        gpus: whether its workers get one each, if that is left to the service.
    """
    worker = demand.worker
    if automatic.gpus:
        # A type of GPU is a request for one.
        worker = worker._replace(gpus=int(gpus or demand.choice.gpu_type is not None))
    demand = demand._replace(worker=worker)
    if automatic.cpus:
        demand = demand._replace(worker=worker._replace(cpus=_share(demand, _hosts(demand, nodes))))
    return demand


def _hosts(demand: Demand, nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes by which the share is measured."""
    usable = [node for node in nodes if demand.choice.allows(node) and not node.drained]
    if not demand.worker.gpus:
        # The CPUs beside GPUs are for the workers of these.
        without = [node for node in usable if not node.total_gpus]
        usable = without if most_places(without, demand) >= demand.workers else usable
    least = demand.workers if demand.choice.same_node else 1
    least = max(1, min(least, most_places(usable, demand)))
    return [node for node in usable if Room.of(node).places(demand.worker) >= least]


def _share(demand: Demand, nodes: Sequence[Node]) -> int:
    """Return the CPUs of each worker.

    Args:
        demand: with one CPU for a worker.
        nodes: on each of which a worker fits.
    """
    if not nodes:
        return 1
    shares = [int(node.total_cpus // max(1, int(node.total_gpus))) for node in nodes]
    # A small head beside large nodes must not decide for these.
    most = min(share for share in shares if 2 * share >= max(shares))
    most = min(most, MOST_CPUS_WITH_GPU if demand.worker.gpus else MOST_CPUS)
    workers = min(demand.workers, most_places(nodes, demand))

    def too_many(cpus: int) -> bool:
        worker = demand.worker._replace(cpus=cpus)
        return most_places(nodes, demand._replace(worker=worker)) < workers

    return max(1, bisect_left(range(1, most + 1), True, key=too_many))
