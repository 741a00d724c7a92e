"""Whether a job could ever start on the cluster."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy.orm import Session

from dasl_core.spec import FieldProblem, Resources
from service.scheduling import repository
from service.scheduling.automatic import Automatic, choose, has_gpus
from service.scheduling.nodes import Node, gpu_types
from service.scheduling.packing import (
    BYTES_PER_GB,
    Demand,
    Room,
    Worker,
    amount,
    most_places,
    places,
)
from service.scheduling.repository import read_nodes
from service.settings import CURRENT_NODES, ClusterLimit


class Capacity(NamedTuple):
    """Whether a job fits on the cluster.

    `problems`: why it can never start. `warnings`: why it must wait for more nodes. `has_gpus`: whether its workers get
    GPUs. `worker`: the resources of each worker if it started now; `None` if no node is known.
    """

    problems: list[FieldProblem]
    warnings: list[str]
    has_gpus: bool
    worker: Worker | None = None


def check_capacity(
    session: Session, resources: Resources, limit: ClusterLimit, *, max_gpus: int | None = None
) -> Capacity:
    """Compare a job with the largest cluster, if that is known, and with the current nodes.

    Args:
        max_gpus: most GPUs that the quotas of the job's owners allow; `None`: any number.
    """
    # The snapshot also has the nodes of a Ray that runs only for work and does not run now.
    nodes = read_nodes(repository.snapshot(session))
    demand, automatic = Demand.from_resources(resources), Automatic.from_resources(resources)
    gpus = max_gpus != 0 and has_gpus(demand, nodes, limit)
    demand = choose(demand, automatic, nodes, gpus=gpus)
    with_gpus = demand.gpus > 0
    or_cpus = automatic.gpus and with_gpus and resources.gpu_type is None
    warnings: list[str] = []
    if max_gpus is not None and demand.gpus > max_gpus:
        message = (
            f"{demand.workers} workers with a GPU each need {demand.gpus} GPUs, and max_gpus of its token or tenant is "
            f"{max_gpus}"
        )
        if or_cpus:
            # The service would choose the GPUs.
            expected = f"at most {max_gpus}, or resources.gpus_per_worker: 0 to train on CPUs"
            value = str(demand.workers)
            problem = FieldProblem("resources.workers", message, value, expected)
            return Capacity([problem], [], with_gpus)
        warnings.append(f"resources.workers: {message}. The job waits until that is raised.")
    misfits = _misfits_on(nodes, demand, resources, or_cpus) if nodes else []
    if limit == CURRENT_NODES and misfits:
        return Capacity(misfits, [], with_gpus)
    if isinstance(limit, tuple):
        # The limit does not say how much memory nodes have.
        largest = [Room(cpus, gpus, math.inf) for count, cpus, gpus in limit for _ in range(count)]
        if problems := _misfits(largest, demand, or_cpus):
            return Capacity(problems, [], with_gpus)
    warnings += _mixed_gpus(nodes, demand)
    end = "The job waits until Ray has more nodes."
    warnings += [f"{misfit.field}: {misfit.message}. {end}" for misfit in misfits]
    is_decided = bool(nodes) or not automatic.cpus
    return Capacity([], warnings, with_gpus, demand.worker if is_decided else None)


def _mixed_gpus(nodes: Sequence[Node], demand: Demand) -> list[str]:
    """Return a warning if the ranks of a job may get GPUs of several types."""
    types = gpu_types([node for node in nodes if demand.choice.allows(node)])
    if len(types) < 2 or demand.workers < 2 or not demand.gpus:
        return []
    return [
        f"resources.gpu_type: the cluster has GPUs of several types ({', '.join(types)}), and the slowest sets the "
        "pace of all ranks. Name one to use only that type."
    ]


def _misfits_on(
    nodes: Sequence[Node], demand: Demand, resources: Resources, or_cpus: bool
) -> list[FieldProblem]:
    """Return why a job could not start even if these nodes were empty."""
    if (room := most_places(nodes, demand)) >= demand.workers:
        return []
    if (none := demand.choice.why_no_node(nodes)) is not None:
        field, message = none
        value = str(getattr(resources, field))
        return [FieldProblem(f"resources.{field}", message, value, "the value of a node")]
    allowed = [Room.from_node(node) for node in nodes if demand.choice.allows(node)]
    if problems := _misfits(allowed, demand, or_cpus):
        return problems
    # All nodes together have room, so `same_node` is the problem.
    message = (
        f"{demand.workers} workers with {amount(*demand.worker)} each: one node has room for {room}"
    )
    return [FieldProblem("resources.same_node", message, "true", "false, or fewer workers")]


def _misfits(rooms: Sequence[Room], demand: Demand, or_cpus: bool) -> list[FieldProblem]:
    """Return why a job could not start even if the nodes were empty.

    Args:
        or_cpus: whether the service chose GPUs for its workers, so that CPUs would do as well.
    """
    worker, workers = demand.worker, demand.workers
    room = places(rooms, worker)
    if room >= workers:
        return []
    if room:
        message = f"{workers} workers with {amount(*worker)} each: the cluster has room for {room}"
        expected = f"at most {room}" + (", or resources.gpus_per_worker: 0" if or_cpus else "")
        return [FieldProblem("resources.workers", message, str(workers), expected)]
    most_cpus = max((node.cpus for node in rooms), default=0)
    most_gpus = max((node.gpus for node in rooms), default=0)
    problems = []
    if worker.gpus > most_gpus:
        problems.append(_too_large("GPU", worker.gpus, most_gpus, "any node"))
    if worker.cpus > most_cpus:
        problems.append(_too_large("CPU", worker.cpus, most_cpus, "any node"))
    if not problems and not any(room.places(worker._replace(memory=0)) for room in rooms):
        cpus = max(node.cpus for node in rooms if node.gpus >= worker.gpus)
        problems.append(_too_large("CPU", worker.cpus, cpus, "any node with a GPU"))
    if not problems:
        least = worker.memory / BYTES_PER_GB
        fitting = [room for room in rooms if room.places(worker._replace(memory=0))]
        most = max(room.memory for room in fitting) / BYTES_PER_GB
        message = f"is more memory than any node has for a worker: {most:.6g} GB"
        problems.append(
            FieldProblem(
                "resources.memory_gb_per_worker", message, f"{least:g}", f"at most {most:.6g}"
            )
        )
    return problems


def _too_large(kind: str, requested: int, most: float, nodes: str) -> FieldProblem:
    message = (
        f"is more than {nodes} has for a worker: {most:g}" if most else f"no node has a {kind}"
    )
    return FieldProblem(
        f"resources.{kind.lower()}s_per_worker",
        message,
        str(requested),
        f"at most {int(most)}" if most else "0",
    )
