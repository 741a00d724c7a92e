"""A tenant's queue as people see it: in the order in which jobs are looked at, each with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from service.cluster import repository
from service.cluster.schemas import QueuedJob
from service.db.models import ClusterSnapshot
from service.scheduling import repository as scheduling
from service.scheduling.admission import Decision, Running, decide
from service.scheduling.nodes import Cluster
from service.scheduling.repository import nodes_of

_AWAY = "Waiting for Ray, which does not answer, or has no node, at the moment"


def waiting(
    session: Session,
    tenant: str,
    seen: ClusterSnapshot | None,
    taken: Sequence[Running],
    now: datetime,
) -> list[QueuedJob]:
    """The queued jobs of a tenant, with what the dispatcher would decide on each of them now."""
    jobs = repository.queue(session, tenant)
    decisions: dict[str, Decision] = {}
    if jobs and seen is not None and seen.alive:
        # Other tenants' jobs count; what is told of them is how much they take.
        everyones = decide(Cluster(nodes_of(seen)), taken, scheduling.queued(session), now)
        decisions = {decision.job.job_id: decision for decision in everyones}
    otherwise = "" if seen is None or seen.alive else _AWAY
    found = []
    for job in jobs:
        decision = decisions.get(job.id)
        found.append(
            QueuedJob(
                id=job.id,
                name=job.name,
                priority=job.priority,
                created_at=job.created_at,
                waits_for=decision and decision.waits_for,
                reason=decision.message if decision else otherwise,
                starts_by=decision and decision.starts_by,
            )
        )
    return found
