"""What is asked of the cluster: its state, whether a job could ever fit, whether we are ready."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy.orm import Session

from dasl_core.spec import FieldProblem, Resources
from service.cluster import repository
from service.cluster.queue import nodes_of, waiting
from service.cluster.schemas import ClusterView
from service.db import migrate
from service.dispatcher import repository as dispatched
from service.dispatcher.packing import Demand, Worker, empty_places
from service.settings import Settings

DISPATCHER_LEASE = "dispatcher"


def view(session: Session, tenant: str) -> ClusterView:
    """The cluster, with the tenant's own queue."""
    now = datetime.now(UTC)
    seen = repository.snapshot(session)
    taken = dispatched.taking_room(session, now)
    queued = repository.count_queued(session, tenant)
    queue = waiting(session, tenant, seen, taken, now)
    if seen is None:
        return ClusterView(queued=queued, queue=queue)
    cpus = sum(one.demand.cpus for one in taken)
    gpus = sum(one.demand.gpus for one in taken)
    return ClusterView(
        at=seen.at,
        alive=seen.alive,
        nodes=seen.nodes,
        total_cpus=seen.total_cpus,
        total_gpus=seen.total_gpus,
        used_cpus=seen.used_cpus,
        used_gpus=seen.used_gpus,
        allocated_cpus=cpus,
        allocated_gpus=gpus,
        free_cpus=max(0.0, seen.total_cpus - max(cpus, seen.used_cpus)),
        free_gpus=max(0.0, seen.total_gpus - max(gpus, seen.used_gpus)),
        queued=queued,
        queue=queue,
    )


def misfits(session: Session, resources: Resources) -> list[FieldProblem]:
    """Why a job could not start even on the empty cluster; nothing is known before a snapshot."""
    seen = repository.snapshot(session)
    if seen is None or not seen.alive:
        return []
    nodes = nodes_of(seen)
    worker = Worker(resources.cpus_per_worker, resources.gpus_per_worker)
    places = empty_places(nodes, worker)
    if places >= resources.workers:
        return []
    if places:
        one = Demand(1, worker)
        message = f"{resources.workers} workers with {one} each: the cluster has room for {places}"
        wanted = f"at most {places}"
        return [FieldProblem("resources.workers", message, str(resources.workers), wanted)]
    most_cpus = max(node.total_cpus for node in nodes)
    most_gpus = max(node.total_gpus for node in nodes)
    problems = []
    if worker.gpus > most_gpus:
        problems.append(_too_large("GPU", worker.gpus, most_gpus, "any node"))
    if worker.cpus > most_cpus:
        problems.append(_too_large("CPU", worker.cpus, most_cpus, "any node"))
    if not problems:
        beside = max(node.total_cpus for node in nodes if node.total_gpus >= worker.gpus)
        problems.append(_too_large("CPU", worker.cpus, beside, "any node with a GPU"))
    return problems


def _too_large(kind: str, given: int, most: float, where: str) -> FieldProblem:
    return FieldProblem(
        f"resources.{kind.lower()}s_per_worker",
        f"is more than {where} has for a worker: {most:g}",
        str(given),
        f"at most {int(most)}",
    )


def readiness(session: Session, settings: Settings) -> dict[str, str]:
    """For each thing that work depends on: `ok`, or what is wrong with it."""
    now = datetime.now(UTC)
    behind = migrate.behind(session.connection())
    checks = {"database": f"{behind}; run `dasl db upgrade`" if behind else "ok"}
    held = repository.lease_is_held(session, DISPATCHER_LEASE, now)
    checks["dispatcher"] = "ok" if held else "no dispatcher holds the lease"
    seen = repository.snapshot(session)
    if seen is None:
        checks["ray"] = "not seen yet"
    elif not seen.alive:
        checks["ray"] = "does not answer"
    elif now - seen.at > timedelta(seconds=settings.lease_seconds):
        checks["ray"] = f"last seen {seen.at.isoformat()}"
    else:
        checks["ray"] = "ok"
    return checks
