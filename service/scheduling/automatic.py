"""The numbers for `resources.gpus_per_worker: auto` and `cpus_per_worker: auto`, from the nodes of a cluster.

A worker gets a GPU if a node that its job may use has one for it, and the job's quotas allow any. Nodes that have been
away for some minutes count, and so does the largest cluster that the service is configured for. The first attempt
decides that, and the later ones keep it: they would wait for a GPU, and not train for days without one.

The CPUs of a worker are a share of the smallest node that it fits on, of those with at least half the share of the
largest: the node's CPUs divided by its GPUs, so that all of its GPUs stay usable, or on a node without GPUs as many as
its job's workers can have each. No fewer of the job's workers fit than would with one CPU each, so a share never keeps
a job from starting on empty nodes. Later attempts have what the first one had, because the number of threads decides
the last bits of a result on CPUs. If the nodes are too few for that, but would not be with those that are away or may
join, they wait some minutes for these; then, or if no nodes are awaited, that attempt has the share of the nodes that
are left.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

from dasl_core.spec import Resources
from service.scheduling.nodes import ANY_NODE, Node, NodeChoice
from service.scheduling.packing import Demand, Room, Worker, most_places
from service.settings import ClusterLimit

MOST_CPUS_WITH_GPU = 16
"""Decoding and augmentation of images for one GPU seldom use more; jobs without GPUs get the rest."""
MOST_CPUS = 64
"""Training on CPUs gains little from further threads."""


class Automatic(NamedTuple):
    """Which numbers of a job's workers are left to the service."""

    cpus: bool = False
    gpus: bool = False
    had_cpus: bool = False
    """Whether the CPUs of its demand are those of its first attempt."""

    @classmethod
    def of(cls, resources: Resources) -> Automatic:
        """Return what a spec's `resources` leave open."""
        return cls(resources.cpus_per_worker == "auto", resources.gpus_per_worker == "auto")


NOTHING = Automatic()


def choose(
    demand: Demand,
    automatic: Automatic,
    nodes: Sequence[Node],
    largest: Sequence[Node] = (),
    *,
    away: Sequence[Node] = (),
    with_foreign: Sequence[Node] = (),
    may_use_gpus: bool = True,
) -> Demand:
    """Return a demand with the numbers that are left to the service, as for a first attempt.

    Args:
        demand: with any numbers in their place.
        nodes: that there are, without what other programs use of them.
        largest: nodes of the largest cluster, which count if the others have no room for the job.
        away: nodes that left the cluster a short time ago, which count if `nodes` have no room for it.
        with_foreign: these nodes with it: a GPU that another program uses for a while is waited for.
        may_use_gpus: whether the quotas of the job's owners allow any.
    """
    worker, choice = demand.worker, demand.choice
    allowed = [node for node in nodes if choice.allows(node)]
    usable = [node for node in allowed if not node.drained]
    known = [*allowed, *(node for node in away if choice.allows(node))]
    if automatic.cpus:
        worker = worker._replace(cpus=1)
    if automatic.gpus:
        with_gpu = worker._replace(gpus=1)
        foreign = (node for node in with_foreign if choice.allows(node))
        possible = [*known, *foreign, *_may_join(choice, allowed, largest)]
        has_gpus = may_use_gpus and any(Room.of(node).places(with_gpu) for node in possible)
        # A type of GPU is a request for one.
        worker = worker._replace(gpus=int(has_gpus or choice.gpu_type is not None))
    if automatic.cpus:
        anywhere = demand._replace(
            worker=worker, choice=ANY_NODE._replace(same_node=choice.same_node)
        )
        worker = worker._replace(
            cpus=_share(anywhere, _suitable(anywhere, usable, allowed, known, largest))
        )
    return demand._replace(worker=worker)


def is_awaited(
    demand: Demand, nodes: Sequence[Node], away: Sequence[Node] = (), largest: Sequence[Node] = ()
) -> bool:
    """Whether all workers of a job would fit if the nodes that are away were back, or on the largest cluster."""
    choice = demand.choice
    usable = [node for node in (*nodes, *away) if not node.drained]
    if most_places(usable, demand) >= demand.workers:
        return True
    joining = _may_join(choice, [node for node in nodes if choice.allows(node)], largest)
    anywhere = demand._replace(choice=ANY_NODE._replace(same_node=choice.same_node))
    return most_places(joining, anywhere) >= demand.workers


def _may_join(
    choice: NodeChoice, allowed: Sequence[Node], largest: Sequence[Node]
) -> Sequence[Node]:
    """Return the nodes that may join for a job: none if nodes have the labels that it asks for.

    Nothing is known about the labels of nodes that are not there.
    """
    return () if choice.labels and allowed else largest


def nodes_of_limit(limit: ClusterLimit) -> list[Node]:
    """Return the nodes of the largest cluster that the service is configured for, if they are known."""
    if not isinstance(limit, tuple):
        return []
    sizes = [(cpus, gpus) for count, cpus, gpus in limit for _ in range(count)]
    return [Node("", "", cpus, gpus, 0, 0, total_memory=math.inf) for cpus, gpus in sizes]


def with_numbers(spec: Any, cpus: int | None, gpus: int | None) -> Any:
    """Return a stored spec with the numbers that its job's newest attempt has in place of "auto".

    Args:
        spec: of any content.
        cpus: of a worker; `None` if not chosen yet.
        gpus: likewise.
    """
    resources = spec.get("resources") if isinstance(spec, dict) else None
    if not isinstance(resources, dict):
        return spec
    chosen = {
        name: number
        for name, number in (("cpus_per_worker", cpus), ("gpus_per_worker", gpus))
        if number is not None and resources.get(name) == "auto"
    }
    return {**spec, "resources": resources | chosen} if chosen else spec


def _suitable(demand: Demand, *kinds: Sequence[Node]) -> list[Node]:
    """Return the nodes by which the share is measured: of the first kind that has room for all workers.

    If none has, of the kind that has room for most.
    """
    if not demand.worker.gpus:
        # The CPUs beside GPUs are for the workers of these.
        without = ([node for node in kind if not node.total_gpus] for kind in kinds)
        kinds = tuple(chain.from_iterable(zip(without, kinds, strict=True)))
    rooms = [most_places(kind, demand) for kind in kinds]
    best = max(range(len(kinds)), key=lambda n: min(rooms[n], demand.workers))
    needed = min(rooms[best], demand.workers) if demand.choice.same_node else 1
    return [node for node in kinds[best] if Room.of(node).places(demand.worker) >= max(1, needed)]


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
        worker = Worker(cpus, demand.worker.gpus, demand.worker.memory)
        return most_places(nodes, demand._replace(worker=worker)) < workers

    return max(1, bisect_left(range(1, most + 1), True, key=too_many))
