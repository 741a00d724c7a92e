"""Demand of jobs for nodes, as Ray's autoscaler understands it.

Version 2 of Ray's autoscaler serves a request as a whole or not at all: if one worker fits on no node that it may
add, it adds none. So a request has what runs and, in the order of the queue, the waiting jobs that are certain to fit
beside it on the largest cluster (`DASL_CLUSTER_LIMIT`), wherever Ray places each. The limit knows neither labels nor
types of GPUs nor memory. Of the jobs that name these, of those that only may fit, and of all jobs if there is no limit,
a request has one: they take turns by the clock, so that a wrong label delays the others and does not stop them.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

from service.scheduling.admission import Decision
from service.scheduling.nodes import ANY_NODE, GPU_TYPE_LABEL, NodeChoice
from service.scheduling.packing import Demand, Room, Worker, sure_places
from service.settings import ClusterLimit

MAX_WORKERS = 1000
"""Limit of the workers of one request; what runs is in it in any case."""

Bundles = list[tuple[int, dict[str, float], dict[str, str]]]
"""Numbers of equal workers, with their resources and the labels of their nodes."""

_Kinds = Counter[tuple[Worker, NodeChoice]]


def waiting_demands(decisions: Iterable[Decision]) -> list[Demand]:
    """Return what the jobs that wait for nodes need; jobs that wait for a quota need none."""
    waiting = (each.job.demand for each in decisions if each.waits_for in ("machines", "room"))
    return [_as_shown(demand) for demand in waiting]


def bundles(demands: Iterable[Demand]) -> Bundles:
    """Return a request of Ray's autoscaler, which compares it with the whole cluster: it contains what runs."""
    parts = _kinds(demands).items()
    return sorted(
        ((count, _resources(worker), _labels(choice)) for (worker, choice), count in parts),
        key=repr,
    )


def choose(
    running: Sequence[Demand], waiting: Sequence[Demand], limit: ClusterLimit, turn: int
) -> list[Demand]:
    """Return for which of the waiting jobs nodes are requested.

    In one turn these are the jobs that are certain to fit, and in each further one also a kind of the others.
    """
    kinds, rooms = _kinds(running), _rooms(limit)
    sure = certain(running, waiting, limit)
    unsure = [
        [each]
        for each in dict.fromkeys(waiting)
        if _may_fit(with_it := kinds + _kinds([each]), rooms)
        and not (_is_described(each, limit) and _fits(with_it, rooms))
    ]
    turns = [[], *unsure] if sure or not unsure else unsure
    first = turns[turn % len(turns)]
    return [*first, *certain([*running, *first], waiting, limit)]


def certain(
    running: Iterable[Demand], waiting: Iterable[Demand], limit: ClusterLimit
) -> list[Demand]:
    """Return the waiting jobs that are certain to fit beside what runs, in the order of the queue."""
    kinds, rooms = _kinds(running), _rooms(limit)
    queue = [each for each in waiting if _is_described(each, limit)]
    chosen: list[Demand] = []
    while fitting := {each for each in set(queue) if _fits(kinds + _kinds([each]), rooms)}:
        queue = [each for each in queue if each in fitting]
        # As many from its head as fit together; a search, because a check takes long for a large cluster.
        count = bisect_left(
            range(1, len(queue) + 1),
            True,
            key=lambda n: not _fits(kinds + _kinds(queue[:n]), rooms),
        )
        chosen += queue[:count]
        kinds += _kinds(queue[:count])
        queue = queue[count:]
    return chosen


def _kinds(demands: Iterable[Demand]) -> _Kinds:
    kinds: _Kinds = Counter()
    for demand in map(_as_shown, demands):
        kinds[demand.worker, demand.choice] += demand.workers
    return kinds


def _as_shown(demand: Demand) -> Demand:
    """Return a demand without the choices that Ray's autoscaler does not know."""
    return demand._replace(choice=demand.choice._replace(excluded=frozenset(), same_node=False))


def _is_described(demand: Demand, limit: ClusterLimit) -> bool:
    return isinstance(limit, tuple) and demand.choice == ANY_NODE and not demand.worker.memory


def _rooms(limit: ClusterLimit) -> list[Room] | None:
    if not isinstance(limit, tuple):
        return None
    return [Room(cpus, gpus) for count, cpus, gpus in limit for _ in range(count)]


def _fits(kinds: _Kinds, rooms: Sequence[Room] | None) -> bool:
    """Whether all workers fit on empty nodes, wherever Ray's autoscaler places those that it places first."""
    if not _may_fit(kinds, rooms):
        return False
    if rooms is None:
        return True
    placed: Counter[Worker] = Counter()
    for (worker, _), count in sorted(kinds.items(), key=_rank, reverse=True):
        known = worker._replace(memory=0)
        if sure_places(rooms, placed, known) < count:
            return False
        placed[known] += count
    return True


def _may_fit(kinds: _Kinds, rooms: Sequence[Room] | None) -> bool:
    """Whether all workers together need no more than the empty nodes have, and each fits on one of them."""
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
    """Return the key by which Ray's autoscaler sorts workers (`_sort_resource_request`), the largest first."""
    (worker, choice), _ = item
    resources = _resources(worker)
    return len(_labels(choice)), len(resources), math.fsum(resources.values())


def _resources(worker: Worker) -> dict[str, float]:
    named = {"CPU": worker.cpus, "GPU": worker.gpus, "memory": worker.memory}
    return {name: amount for name, amount in named.items() if amount}


def _labels(choice: NodeChoice) -> dict[str, str]:
    kind = {GPU_TYPE_LABEL: choice.gpu_type} if choice.gpu_type else {}
    return {**dict(sorted(choice.labels)), **kind}
