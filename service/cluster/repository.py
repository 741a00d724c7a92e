"""SQL of the queue."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Row, func, select
from sqlalchemy.orm import Session

from service.db.models import Job
from service.states import JobStatus


def count_queued(session: Session, tenant: str) -> int:
    """Count a tenant's queued jobs."""
    query = select(func.count()).where(Job.tenant == tenant, Job.status == JobStatus.QUEUED)
    return session.execute(query).scalar_one()


def queue(
    session: Session, tenant: str, limit: int = 200
) -> Sequence[Row[str, str, int, datetime]]:
    """Return (id, name, priority, created_at) of a tenant's queued jobs, by rank, then by age."""
    return session.execute(
        select(Job.id, Job.name, Job.priority, Job.created_at)
        .where(Job.tenant == tenant, Job.status == JobStatus.QUEUED)
        .order_by(Job.preemptible, Job.priority.desc(), Job.id)
        .limit(limit)
    ).all()
