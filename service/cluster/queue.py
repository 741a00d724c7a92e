"""A tenant's queue in the order of admission, with the reason why each job waits."""

from datetime import timedelta

from sqlalchemy.orm import Session

from service.cluster import repository
from service.db import leases
from service.db.leases import DISPATCHER_LEASE
from service.db.models import ClusterSnapshot
from service.scheduling import repository as scheduling
from service.scheduling import stored_decisions
from service.scheduling.dispatcher_report import DispatcherReport
from service.scheduling.stored_decisions import StoredDecision
from service.scheduling.window import ALWAYS
from service.wire.cluster import QueuedJob

_BEHIND = f"Behind {ALWAYS} other jobs: it is considered in turn, every few seconds"
_NO_DISPATCHER = "No dispatcher runs at the moment: nothing starts until one does"
_STARTING = "Ray is starting, which takes about ten seconds"
_UNAVAILABLE = "Waiting for Ray, which does not answer or has no node at the moment"


def waiting(session: Session, tenant: str, snapshot: ClusterSnapshot | None) -> list[QueuedJob]:
    """Return a tenant's queued jobs, each with the dispatcher's last decision on it."""
    jobs = repository.queue(session, tenant)
    decisions: dict[str, StoredDecision] = {}
    lease_left = leases.time_left(session, DISPATCHER_LEASE)
    abandoned = lease_left is not None and lease_left <= timedelta()
    # Nobody keeps what a dispatcher that ended has promised.
    if jobs and snapshot is not None and snapshot.alive and not abandoned:
        # Jobs of other tenants count as well; only their total demand is disclosed.
        decisions = stored_decisions.load(session)
    # Fair share orders the jobs of a rank; jobs without a decision come last.
    order = {job_id: place for place, job_id in enumerate(decisions)}
    jobs = sorted(jobs, key=lambda job: order.get(job.id, len(order)))
    unreadable = scheduling.why_unreadable(session, [job.id for job in jobs])
    reasons = {job_id: f"It cannot start: {why}" for job_id, why in unreadable.items()}
    reasons |= {job_id: decision.reason for job_id, decision in decisions.items()}
    default_reason = "" if snapshot is None or snapshot.alive else _why_none_starts(snapshot)
    if abandoned:
        default_reason = _NO_DISPATCHER
    # Unreadable jobs have no decision, but still take a place.
    if decisions and scheduling.is_queue_full(session, ALWAYS):
        default_reason = _BEHIND
    views = []
    for job in jobs:
        decision, reason = decisions.get(job.id), reasons.get(job.id, default_reason)
        waits_for, starts_by = (
            (decision.waits_for, decision.starts_by) if decision else (None, None)
        )
        views.append(
            QueuedJob(**job._mapping, waits_for=waits_for, reason=reason, starts_by=starts_by)
        )
    return views


def _why_none_starts(snapshot: ClusterSnapshot) -> str:
    report = DispatcherReport.from_snapshot(snapshot)
    if report is None or report.ray is None:
        return _UNAVAILABLE
    return report.ray.problem or _STARTING
