"""SQL of the queue and of drained nodes."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, delete, func, select
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.orm import Session

from service.db.models import Drain, Job
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


def save_drain(session: Session, drain: Mapping[str, Any]) -> None:
    """Add the drain of a node, or replace it."""
    is_sqlite = session.get_bind().dialect.name == "sqlite"
    row = (sqlite_insert if is_sqlite else postgresql_insert)(Drain).values(**drain)
    session.execute(row.on_conflict_do_update(index_elements=["node"], set_=dict(drain)))


def remove_drains(session: Session, nodes: Collection[str]) -> None:
    """End the drains of nodes with these names."""
    session.execute(delete(Drain).where(Drain.node.in_(nodes)))
