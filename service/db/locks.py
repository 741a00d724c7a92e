"""Row locks that several rooms take."""

from __future__ import annotations

from sqlalchemy.orm import Session

from service.db.models import Job


def lock_job(session: Session, job_id: str) -> Job | None:
    """The job's row as it is now, locked until the transaction ends."""
    return session.get(Job, job_id, with_for_update=True, populate_existing=True)
