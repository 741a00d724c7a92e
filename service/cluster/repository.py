"""SQL of the cluster's snapshot, the leases and the queue."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.models import ClusterSnapshot, Job, Lease
from service.lifecycle import JobStatus

_ROW = 1


def snapshot(session: Session) -> ClusterSnapshot | None:
    """What the dispatcher last saw of the cluster, if it ever did."""
    return session.get(ClusterSnapshot, _ROW)


def save_snapshot(session: Session, seen: ClusterSnapshot) -> None:
    """Replace the snapshot. `seen.id` is set here."""
    seen.id = _ROW
    session.merge(seen)


def lease(session: Session, name: str) -> Lease | None:
    """Who holds a lease, or held it last."""
    return session.get(Lease, name)


def lease_is_held(session: Session, name: str, now: datetime) -> bool:
    """Whether somebody holds the lease at this time."""
    row = lease(session, name)
    return row is not None and row.expires_at > now


def queue(session: Session, tenant: str, limit: int = 200) -> Sequence[Job]:
    """A tenant's queued jobs in the order they are looked at: priority, then first come."""
    return session.scalars(
        select(Job)
        .where(Job.tenant == tenant, Job.status == JobStatus.QUEUED)
        .order_by(Job.priority.desc(), Job.id)
        .limit(limit)
    ).all()
