"""What is asked of the cluster: its state, whether a job could ever fit, whether we are ready."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy.orm import Session

from service.cluster import repository
from service.cluster.queue import waiting
from service.cluster.schemas import ClusterView
from service.db import leases, migrate
from service.db.leases import DISPATCHER_LEASE
from service.scheduling import repository as scheduling
from service.settings import Settings


def view(session: Session, tenant: str) -> ClusterView:
    """The cluster, with the tenant's own queue."""
    now = datetime.now(UTC)
    seen = scheduling.snapshot(session)
    taken = scheduling.taking_room(session, now)
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


def readiness(session: Session, settings: Settings) -> dict[str, str]:
    """For each thing that work depends on: `ok`, or what is wrong with it."""
    now = datetime.now(UTC)
    behind = migrate.behind(session.connection())
    checks = {"database": f"{behind}; run `dasl db upgrade`" if behind else "ok"}
    held = leases.lease_is_held(session, DISPATCHER_LEASE, now)
    checks["dispatcher"] = "ok" if held else "no dispatcher holds the lease"
    seen = scheduling.snapshot(session)
    if seen is None:
        checks["ray"] = "not seen yet"
    elif not seen.alive:
        checks["ray"] = "does not answer"
    elif now - seen.at > timedelta(seconds=settings.lease_seconds):
        checks["ray"] = f"last seen {seen.at.isoformat()}"
    else:
        checks["ray"] = "ok"
    return checks
