"""Row locks that several packages take."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.models import Job, Tenant


def lock_job(session: Session, job_id: str) -> Job | None:
    """Lock a job's row until the transaction ends, and refresh it; `None` if the job does not exist."""
    return session.get(Job, job_id, with_for_update=True, populate_existing=True)


def lock_tenant(session: Session, name: str) -> bool:
    """Lock a tenant against deletion until the transaction ends; `False` if it was deleted.

    Take it before other locks, as the deletion does. The lock is shared, and does not block changes of the limits.
    """
    query = select(Tenant.name).where(Tenant.name == name)
    return session.scalar(query.with_for_update(read=True, key_share=True)) is not None
