"""The state of the cluster, and the readiness of the service."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from service.cluster import drains, repository
from service.cluster.queue import waiting
from service.cluster.schemas import ClusterView
from service.db import leases, migrate
from service.db.leases import DISPATCHER_LEASE
from service.db.models import ClusterSnapshot
from service.scheduling import repository as scheduling
from service.scheduling.decision_cache import DecisionCache
from service.scheduling.nodes import Cluster, with_drains
from service.settings import Settings


def view(
    session: Session, tenant: str, decisions: DecisionCache, *, names_nodes: bool
) -> ClusterView:
    """Return the state of the cluster with the tenant's queue.

    Args:
        decisions: on the queue of all tenants.
        names_nodes: show the ids and addresses of nodes; otherwise nodes are numbered.
    """
    now = datetime.now(UTC)
    snapshot = scheduling.snapshot(session)
    taken = scheduling.resources_in_use(session, now)
    queued = repository.count_queued(session, tenant)
    queue = waiting(session, tenant, snapshot, taken, now, decisions)
    shown = drains.shown(session) if names_nodes else []
    if snapshot is None:
        return ClusterView(queued=queued, queue=queue, drains=shown)
    cpus = sum(one.demand.cpus for one in taken)
    gpus = sum(one.demand.gpus for one in taken)
    return ClusterView(
        at=snapshot.at,
        alive=snapshot.alive,
        nodes=_views(session, snapshot, names_nodes=names_nodes),
        total_cpus=snapshot.total_cpus,
        total_gpus=snapshot.total_gpus,
        used_cpus=snapshot.used_cpus,
        used_gpus=snapshot.used_gpus,
        allocated_cpus=cpus,
        allocated_gpus=gpus,
        free_cpus=max(0.0, snapshot.total_cpus - max(cpus, snapshot.used_cpus)),
        free_gpus=max(0.0, snapshot.total_gpus - max(gpus, snapshot.used_gpus)),
        queued=queued,
        queue=queue,
        drains=shown,
    )


def _views(
    session: Session, snapshot: ClusterSnapshot, *, names_nodes: bool
) -> list[dict[str, Any]]:
    cluster = with_drains(Cluster(scheduling.nodes_of(snapshot)), scheduling.drained(session))
    views = []
    for number, node in enumerate(cluster.nodes, start=1):
        view = {**vars(node), "labels": dict(node.labels), "gpu_type": node.gpu_type}
        if not names_nodes:
            view |= {"id": f"node-{number}", "address": "", "name": "", "labels": {}}
        views.append(view)
    return views


def readiness(session: Session, settings: Settings) -> dict[str, str]:
    """Check database, dispatcher and Ray; each result is `ok` or a reason."""
    now = datetime.now(UTC)
    behind = migrate.behind(session.connection())
    checks = {"database": f"{behind}; run `dasl db upgrade`" if behind else "ok"}
    left = leases.time_left(session, DISPATCHER_LEASE)
    held = left is not None and left > timedelta()
    checks["dispatcher"] = "ok" if held else "no dispatcher holds the lease"
    snapshot = scheduling.snapshot(session)
    if snapshot is None:
        checks["ray"] = "not seen yet"
    elif not snapshot.alive:
        checks["ray"] = "does not answer"
    elif now - snapshot.at > timedelta(seconds=settings.lease_seconds):
        checks["ray"] = f"last seen {snapshot.at.isoformat()}"
    else:
        checks["ray"] = "ok"
    return checks
