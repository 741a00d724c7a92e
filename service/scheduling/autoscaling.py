"""Demand of jobs for nodes, as Ray's autoscaler understands it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain

from service.scheduling.admission import Decision, Running
from service.scheduling.nodes import GPU_TYPE_LABEL, NodeChoice
from service.scheduling.packing import Worker

MAX_WORKERS = 1000
"""Limit of the workers of one request, counted from the head of the queue."""

Bundles = list[tuple[int, dict[str, float], dict[str, str]]]
"""Numbers of equal workers, with their resources and the labels of their nodes."""


def bundles(running: Iterable[Running], decisions: Iterable[Decision]) -> Bundles:
    """Return what running jobs hold and the first waiting ones need; empty if none waits for nodes.

    Ray's autoscaler compares a request with the whole cluster, so it contains what runs. Jobs that wait for
    a quota need no nodes.
    """
    waiting = [job.job.demand for job in decisions if job.waits_for in ("machines", "room")]
    if not waiting:
        return []
    counts: Counter[tuple[Worker, NodeChoice]] = Counter()
    for demand in chain((job.demand for job in running), waiting):
        if counts.total() + demand.workers > MAX_WORKERS:
            break
        counts[demand.worker, demand.choice._replace(excluded=frozenset(), same_node=False)] += (
            demand.workers
        )
    parts = (
        (count, _resources(worker), _labels(choice)) for (worker, choice), count in counts.items()
    )
    return sorted(parts, key=repr)


def _resources(worker: Worker) -> dict[str, float]:
    named = {"CPU": worker.cpus, "GPU": worker.gpus, "memory": worker.memory}
    return {name: amount for name, amount in named.items() if amount}


def _labels(choice: NodeChoice) -> dict[str, str]:
    kind = {GPU_TYPE_LABEL: choice.gpu_type} if choice.gpu_type else {}
    return {**dict(sorted(choice.labels)), **kind}
