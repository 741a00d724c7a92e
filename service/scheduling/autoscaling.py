"""Resource requests to Ray's autoscaler.

Version 2 of Ray's autoscaler serves a request completely or not at all: if one worker fits on no node that it may
add, it adds none. A request therefore contains the running jobs and, in the order of the queue, the waiting jobs that
are certain to fit together with them on the largest cluster (`DASL_CLUSTER_LIMIT`), wherever Ray places them.

The limit has no labels, GPU types or memory. Jobs that request these, jobs that may not fit, and all jobs if there is
no limit take turns by the clock: a request contains one of them, so that a wrong label only delays the others.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

from service.scheduling.admission import Decision
from service.scheduling.nodes import ANY_NODE, GPU_TYPE_LABEL, NodeChoice
from service.scheduling.packing import Demand, Room, Worker, sure_places
from service.settings import ClusterLimit

MAX_WORKERS = 1000
"""Most workers of one request, including the running ones."""

Bundles = list[tuple[int, dict[str, float], dict[str, str]]]
"""Numbers of equal workers, with their resources and the labels of their nodes."""

_Kinds = Counter[tuple[Worker, NodeChoice]]


def waiting_demands(decisions: Iterable[Decision]) -> list[Demand]:
    """Return the demands of the jobs that wait for nodes; jobs that wait for a quota are left out."""
    return [
        _simplified(item.job.demand) for item in decisions if item.waits_for in ("machines", "room")
    ]


def bundles(demands: Iterable[Demand]) -> Bundles:
    """Build a request to Ray's autoscaler, which must contain the running jobs as well."""
    parts = _kinds(demands).items()
    return sorted(
        ((count, _resources(worker), _labels(choice)) for (worker, choice), count in parts),
        key=repr,
    )


def choose(
    running: Sequence[Demand], waiting: Sequence[Demand], limit: ClusterLimit, turn: int
) -> list[Demand]:
    """Choose the waiting jobs for which nodes are requested.

    These are the jobs that are certain to fit, and in all turns but the first one kind of the others.
    """
    kinds, rooms = _kinds(running), _rooms(limit)
    sure = certain(running, waiting, limit)
    unsure = [
        [demand]
        for demand in dict.fromkeys(waiting)
        if _may_fit(with_it := kinds + _kinds([demand]), rooms)
        and not (_is_described(demand, limit) and _fits(with_it, rooms))
    ]
    turns = [[], *unsure] if sure or not unsure else unsure
    first = turns[turn % len(turns)]
    return [*first, *certain([*running, *first], waiting, limit)]


def certain(
    running: Iterable[Demand], waiting: Iterable[Demand], limit: ClusterLimit
) -> list[Demand]:
    """Return the waiting jobs that are certain to fit together with the running ones, in the order of the queue."""
    kinds, rooms = _kinds(running), _rooms(limit)
    queue = [demand for demand in waiting if _is_described(demand, limit)]
    fits: list[Demand] = []
    while fitting := {demand for demand in set(queue) if _fits(kinds + _kinds([demand]), rooms)}:
        queue = [demand for demand in queue if demand in fitting]
        # Take the longest prefix that fits, by bisection: a check takes long for a large cluster.
        count = bisect_left(
            range(1, len(queue) + 1),
            True,
            key=lambda n: not _fits(kinds + _kinds(queue[:n]), rooms),
        )
        fits += queue[:count]
        kinds += _kinds(queue[:count])
        queue = queue[count:]
    return fits


def _kinds(demands: Iterable[Demand]) -> _Kinds:
    kinds: _Kinds = Counter()
    for demand in map(_simplified, demands):
        kinds[demand.worker, demand.choice] += demand.workers
    return kinds


def _simplified(demand: Demand) -> Demand:
    """Return a demand without the constraints that Ray's autoscaler does not support."""
    return demand._replace(choice=demand.choice._replace(excluded=frozenset(), same_node=False))


def _is_described(demand: Demand, limit: ClusterLimit) -> bool:
    return isinstance(limit, tuple) and demand.choice == ANY_NODE and not demand.worker.memory


def _rooms(limit: ClusterLimit) -> list[Room] | None:
    if not isinstance(limit, tuple):
        return None
    return [Room(cpus, gpus) for count, cpus, gpus in limit for _ in range(count)]


def _fits(kinds: _Kinds, rooms: Sequence[Room] | None) -> bool:
    """Whether all workers fit on empty nodes for any placement by Ray's autoscaler."""
    if not _may_fit(kinds, rooms):
        return False
    if rooms is None:
        return True
    placed: Counter[Worker] = Counter()
    for (worker, _), count in sorted(kinds.items(), key=_rank, reverse=True):
        without_memory = worker._replace(memory=0)
        if sure_places(rooms, placed, without_memory) < count:
            return False
        placed[without_memory] += count
    return True


def _may_fit(kinds: _Kinds, rooms: Sequence[Room] | None) -> bool:
    """Whether the empty nodes have enough resources in total, and each worker fits on one of them."""
    if kinds.total() > MAX_WORKERS:
        return False
    if rooms is None:
        return True
    workers = {worker._replace(memory=0) for worker, _ in kinds}
    return (
        sum(worker.cpus * count for (worker, _), count in kinds.items())
        <= sum(room.cpus for room in rooms)
        and sum(worker.gpus * count for (worker, _), count in kinds.items())
        <= sum(room.gpus for room in rooms)
        and all(any(room.places(worker) for room in rooms) for worker in workers)
    )


def _rank(item: tuple[tuple[Worker, NodeChoice], int]) -> tuple[int, int, float]:
    """Return the sort key of Ray's autoscaler (`_sort_resource_request`), which places the largest workers first."""
    (worker, choice), _ = item
    resources = _resources(worker)
    return len(_labels(choice)), len(resources), math.fsum(resources.values())


def _resources(worker: Worker) -> dict[str, float]:
    named = {"CPU": worker.cpus, "GPU": worker.gpus, "memory": worker.memory}
    return {name: amount for name, amount in named.items() if amount}


def _labels(choice: NodeChoice) -> dict[str, str]:
    kind = {GPU_TYPE_LABEL: choice.gpu_type} if choice.gpu_type else {}
    return {**dict(sorted(choice.labels)), **kind}
