"""Demand of jobs for nodes, as Ray's autoscaler understands it.

Version 2 of Ray's autoscaler serves a request as a whole or not at all: if one worker fits on no node that it may
add, it adds none. So a request has what runs and, in the order of the queue, the waiting jobs that fit beside it on
the largest cluster (`DASL_CLUSTER_LIMIT`), wherever Ray places each. The limit knows neither labels nor types of GPUs
nor memory. Of the jobs that name these, of those that may only fit, and of all jobs if there is no limit, a request
has one: the guess.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from service.scheduling.admission import Decision
from service.scheduling.nodes import ANY_NODE, GPU_TYPE_LABEL, NodeChoice
from service.scheduling.packing import Demand, Room, Worker, sure_places
from service.settings import ClusterLimit

MAX_WORKERS = 1000
"""Limit of the workers of one request; what runs is in it in any case."""

Bundles = list[tuple[int, dict[str, float], dict[str, str]]]
"""Numbers of equal workers, with their resources and the labels of their nodes."""

_Kinds = Counter[tuple[Worker, NodeChoice]]


class Request(NamedTuple):
    """What the autoscaler is shown; no bundles if it has no waiting job."""

    bundles: Bundles
    waiting: list[Demand]


def waiting_demands(decisions: Iterable[Decision]) -> list[Demand]:
    """Return what the jobs that wait for nodes need; jobs that wait for a quota need none."""
    waiting = (each.job.demand for each in decisions if each.waits_for in ("machines", "room"))
    return [_as_shown(demand) for demand in waiting]


def guesses(
    running: Iterable[Demand], waiting: Iterable[Demand], limit: ClusterLimit
) -> list[Demand]:
    """Return the distinct demands that the limit does not exclude, but does not know to be possible either."""
    kinds, rooms = _kinds(running), _rooms(limit)
    return [
        each
        for each in dict.fromkeys(waiting)
        if _may_fit(with_it := kinds + _kinds([each]), rooms)
        and not (_is_decidable(each, limit) and _fits(with_it, rooms))
    ]


def request(
    running: Iterable[Demand], waiting: Iterable[Demand], limit: ClusterLimit, guess: Demand | None
) -> Request:
    """Return a request with what runs, one waiting job with the demand `guess`, and those that fit beside these.

    Ray's autoscaler compares a request with the whole cluster, so it contains what runs.
    """
    kinds, rooms = _kinds(running), _rooms(limit)
    queue = [each for each in waiting if _is_decidable(each, limit)]
    chosen: list[Demand] = []
    if guess is not None and guess in waiting and _may_fit(kinds + _kinds([guess]), rooms):
        chosen = [guess]
        kinds += _kinds(chosen)
        if guess in queue:
            queue.remove(guess)
    while fitting := set(_fitting(kinds, queue, rooms)):
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
    if not chosen:
        return Request([], [])
    parts = [
        (count, _resources(worker), _labels(choice)) for (worker, choice), count in kinds.items()
    ]
    return Request(sorted(parts, key=repr), chosen)


def _kinds(demands: Iterable[Demand]) -> _Kinds:
    kinds: _Kinds = Counter()
    for demand in map(_as_shown, demands):
        kinds[demand.worker, demand.choice] += demand.workers
    return kinds


def _fitting(
    kinds: _Kinds, demands: Iterable[Demand], rooms: Sequence[Room] | None
) -> list[Demand]:
    """Return the distinct demands of which one job fits beside the workers."""
    return [each for each in dict.fromkeys(demands) if _fits(kinds + _kinds([each]), rooms)]


def _as_shown(demand: Demand) -> Demand:
    """Return a demand without the choices that Ray's autoscaler does not know."""
    return demand._replace(choice=demand.choice._replace(excluded=frozenset(), same_node=False))


def _is_decidable(demand: Demand, limit: ClusterLimit) -> bool:
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
