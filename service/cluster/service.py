"""The state of the cluster, and the readiness of the service."""

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from service.artifacts import free_space
from service.cluster import drains, repository
from service.cluster.queue import waiting
from service.db import leases, migrate
from service.db.leases import DISPATCHER_LEASE
from service.db.models import ClusterSnapshot
from service.scheduling import repository as scheduling
from service.scheduling.dispatcher_report import DispatcherReport, RayReport
from service.settings import Settings
from service.wire.cluster import ClusterView


def view(
    session: Session,
    tenant: str,
    *,
    names_nodes: bool,
    api_started_at: datetime,
) -> ClusterView:
    """Return the state of the cluster with the tenant's queue.

    Args:
        names_nodes: show the ids and addresses of nodes; otherwise nodes are numbered.
    """
    now = datetime.now(UTC)
    snapshot = scheduling.snapshot(session)
    taken = scheduling.resources_in_use(session, now)
    always: dict[str, Any] = {
        "api_started_at": api_started_at,
        "queued": repository.count_queued(session, tenant),
        "queue": waiting(session, tenant, snapshot),
        "drains": drains.views(session) if names_nodes else [],
    }
    if snapshot is None:
        return ClusterView(**always)
    report = DispatcherReport.from_snapshot(snapshot)
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
        dispatcher_started_at=report.started_at if report else None,
        ray_version=report.ray_version if report else None,
        ray_tested=report.ray_tested if report else None,
        rest=report.ray.state if report and report.ray else None,
        **always,
    )


def _views(
    session: Session, snapshot: ClusterSnapshot, *, names_nodes: bool
) -> list[dict[str, Any]]:
    views = []
    nodes = scheduling.known_cluster(session, snapshot).nodes
    for number, node in enumerate(nodes, start=1):
        view = {**vars(node), "labels": dict(node.labels), "gpu_type": node.gpu_type}
        if not names_nodes:
            view |= {"id": f"node-{number}", "address": "", "name": "", "labels": {}}
        views.append(view)
    return views


def readiness(session: Session, settings: Settings, *, full: bool = False) -> dict[str, str]:
    """Check database, dispatcher, Ray and storage; each result is `ok` or a reason.

    Args:
        full: whether a write just failed because the database's disk is full.
    """
    now = datetime.now(UTC)
    behind = migrate.behind(session.connection())
    checks = {"database": f"{behind}; run `dasl db upgrade`" if behind else "ok"}
    left = leases.time_left(session, DISPATCHER_LEASE)
    held = left is not None and left > timedelta()
    checks["dispatcher"] = "ok" if held else "no dispatcher holds the lease"
    snapshot = None if behind else scheduling.snapshot(session)
    if snapshot is None:
        checks["ray"] = "not seen yet"
    elif (rest := _rest(snapshot)) is not None and rest.problem is not None:
        checks["ray"] = rest.problem
    elif not snapshot.alive and rest is None:
        checks["ray"] = "does not answer"
    elif now - snapshot.at > timedelta(seconds=settings.lease_seconds):
        checks["ray"] = f"last seen {snapshot.at.isoformat()}"
    else:
        checks["ray"] = rest.state if rest is not None else "ok"
    checks["storage"] = _storage(snapshot, settings, full) or "ok"
    return checks


def _rest(snapshot: ClusterSnapshot) -> RayReport | None:
    report = DispatcherReport.from_snapshot(snapshot)
    return report.ray if report else None


def _storage(snapshot: ClusterSnapshot | None, settings: Settings, full: bool) -> str | None:
    """Return why the database or the artifact store cannot be written; `None` if both can."""
    if full:
        return free_space.full(free_space.DATABASE)
    for what, uri in (
        (free_space.DATABASE, settings.database_url),
        (free_space.ARTIFACTS, settings.artifacts_uri),
    ):
        try:
            shortage = free_space.shortage(what, uri)
        except OSError as error:
            return f"the disk of {what} does not answer: {error.strerror}"
        if shortage is not None:
            return shortage
    report = DispatcherReport.from_snapshot(snapshot)
    if snapshot is None or report is None:
        return None
    if report.store is not None and report.store.problem is not None:
        return report.store.problem
    # It checks every minute, and a store that hangs gives no answer. By the dispatcher's clock alone.
    silent = snapshot.at - (report.store.checked_at if report.store else report.started_at)
    return free_space.silent(silent) if silent > free_space.SILENT else None
