"""Whether a job could ever start on the cluster."""

from __future__ import annotations

from sqlalchemy.orm import Session

from dasl_core.spec import FieldProblem, Resources
from service.scheduling import repository
from service.scheduling.packing import Demand, Room, Worker, places
from service.scheduling.repository import nodes_of


def capacity_problems(session: Session, resources: Resources) -> list[FieldProblem]:
    """Return why a job could not start even on the empty cluster; empty without a snapshot."""
    snapshot = repository.snapshot(session)
    if snapshot is None or not snapshot.alive:
        return []
    nodes = nodes_of(snapshot)
    worker = Worker(resources.cpus_per_worker, resources.gpus_per_worker)
    room = places([Room(node.total_cpus, node.total_gpus) for node in nodes], worker)
    if room >= resources.workers:
        return []
    if room:
        size = Demand(1, worker)
        message = f"{resources.workers} workers with {size} each: the cluster has room for {room}"
        expected = f"at most {room}"
        return [FieldProblem("resources.workers", message, str(resources.workers), expected)]
    most_cpus = max(node.total_cpus for node in nodes)
    most_gpus = max(node.total_gpus for node in nodes)
    problems = []
    if worker.gpus > most_gpus:
        problems.append(_too_large("GPU", worker.gpus, most_gpus, "any node"))
    if worker.cpus > most_cpus:
        problems.append(_too_large("CPU", worker.cpus, most_cpus, "any node"))
    if not problems:
        cpus = max(node.total_cpus for node in nodes if node.total_gpus >= worker.gpus)
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
