"""Whether a job could ever start on the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy.orm import Session

from dasl_core.spec import FieldProblem, Resources
from service.scheduling import repository
from service.scheduling.packing import Demand, Room, Worker, places
from service.scheduling.repository import nodes_of
from service.settings import CURRENT_NODES, ClusterLimit


class Capacity(NamedTuple):
    """What the size of the cluster means for a job.

    `problems`: it can never start. `warnings`: it must wait for nodes that are not there now.
    """

    problems: list[FieldProblem]
    warnings: list[str]


def check_capacity(session: Session, resources: Resources, limit: ClusterLimit) -> Capacity:
    """Compare a job with the largest cluster, if that is known, and with the nodes of now."""
    snapshot = repository.snapshot(session)
    misfits = []
    if snapshot is not None and snapshot.alive:
        rooms = [Room(node.total_cpus, node.total_gpus) for node in nodes_of(snapshot)]
        misfits = _misfits(rooms, resources)
    if limit == CURRENT_NODES:
        return Capacity(misfits, [])
    if limit is not None:
        largest = [Room(cpus, gpus) for count, cpus, gpus in limit for _ in range(count)]
        if problems := _misfits(largest, resources):
            return Capacity(problems, [])
    end = "The job waits until Ray has more nodes."
    warnings = [f"{misfit.field}: {misfit.message}. {end}" for misfit in misfits]
    return Capacity([], warnings)


def _misfits(rooms: Sequence[Room], resources: Resources) -> list[FieldProblem]:
    """Return why a job could not start even if the nodes were empty."""
    worker = Worker(resources.cpus_per_worker, resources.gpus_per_worker)
    room = places(rooms, worker)
    if room >= resources.workers:
        return []
    if room:
        size = Demand(1, worker)
        message = f"{resources.workers} workers with {size} each: the cluster has room for {room}"
        expected = f"at most {room}"
        return [FieldProblem("resources.workers", message, str(resources.workers), expected)]
    most_cpus = max((node.cpus for node in rooms), default=0)
    most_gpus = max((node.gpus for node in rooms), default=0)
    problems = []
    if worker.gpus > most_gpus:
        problems.append(_too_large("GPU", worker.gpus, most_gpus, "any node"))
    if worker.cpus > most_cpus:
        problems.append(_too_large("CPU", worker.cpus, most_cpus, "any node"))
    if not problems:
        cpus = max(node.cpus for node in rooms if node.gpus >= worker.gpus)
        problems.append(_too_large("CPU", worker.cpus, cpus, "any node with a GPU"))
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
