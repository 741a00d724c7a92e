"""Row locks that several packages take."""

from __future__ import annotations

from sqlalchemy.orm import Session

from service.db.models import Job


def lock_job(session: Session, job_id: str) -> Job | None:
    """Lock a job's row until the transaction ends, and refresh it; `None` if there is no such job."""
    return session.get(Job, job_id, with_for_update=True, populate_existing=True)
