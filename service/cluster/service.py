"""What is asked of the cluster: its state, whether a job could ever fit, whether we are ready."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy.orm import Session

from dasl_core.spec import FieldProblem, Resources
from service.cluster import repository
from service.cluster.queue import waiting
from service.cluster.schemas import ClusterView
from service.db import migrate
from service.settings import Settings

DISPATCHER_LEASE = "dispatcher"


def view(session: Session, tenant: str) -> ClusterView:
    """The cluster, with the tenant's own queue."""
    seen = repository.snapshot(session)
    queued, queue = repository.count_queued(session, tenant), waiting(session, tenant, seen)
    if seen is None:
        return ClusterView(queued=queued, queue=queue)
    return ClusterView(
        at=seen.at,
        alive=seen.alive,
        nodes=seen.nodes,
        total_cpus=seen.total_cpus,
        total_gpus=seen.total_gpus,
        used_cpus=seen.used_cpus,
        used_gpus=seen.used_gpus,
        free_cpus=max(0.0, seen.total_cpus - seen.used_cpus),
        free_gpus=max(0.0, seen.total_gpus - seen.used_gpus),
        queued=queued,
        queue=queue,
    )


def misfits(session: Session, resources: Resources) -> list[FieldProblem]:
    """Why a job could not start even on the empty cluster; nothing is known before a snapshot."""
    seen = repository.snapshot(session)
    if seen is None or not seen.alive:
        return []
    problems = []
    for kind, each, total in (
        ("CPU", resources.cpus_per_worker, seen.total_cpus),
        ("GPU", resources.gpus_per_worker, seen.total_gpus),
    ):
        if each > total:
            problems.append(
                FieldProblem(
                    f"resources.{kind.lower()}s_per_worker",
                    f"is more than the {total:g} {kind}s that the cluster has",
                    str(each),
                    f"at most {int(total)}",
                )
            )
        elif resources.workers * each > total:
            problems.append(
                FieldProblem(
                    "resources.workers",
                    f"{resources.workers} workers need {resources.workers * each} {kind}s, and "
                    f"the cluster has {total:g}",
                    str(resources.workers),
                    f"at most {int(total // each)} with {each} {kind} for each",
                )
            )
    return problems


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
