"""Deletion of jobs. It hides a job at once; the dispatcher removes its files and rows in the background."""

from datetime import UTC, datetime

from sqlalchemy.orm import Session

from service.api.problems import Problem, not_found
from service.checkpoints import repository as checkpoints
from service.db.locks import lock_job
from service.db.models import Job
from service.states import TERMINAL
from service.storage import repository


def undelete_job(session: Session, job: Job) -> None:
    """Take back what retention by age has marked of a job, and let it wait as long again.

    Raises:
        Problem: 409, nothing of it is marked.
    """
    if job.marked_at is None:
        detail = (
            "Nothing of the job is about to be removed. What was removed cannot be taken back; pin the checkpoints that "
            "must stay (dasl pin)"
        )
        raise Problem(409, "wrong-state", detail, extra={"job_status": job.status})
    repository.undelete(session, job, datetime.now(UTC))


def delete_job(session: Session, job: Job) -> None:
    """Delete a job that has ended, with all that belongs to it.

    Raises:
        Problem: 404, it was deleted in between; 409, it has not ended, a clone of it has not ended, or one of
            its checkpoints is pinned.
    """
    locked = lock_job(session, job.id)
    if locked is None or locked.deleted_at is not None:
        raise not_found("job", job.id)
    if locked.status not in TERMINAL:
        detail = (
            f"The job is {locked.status}; only a job that has ended can be deleted. Cancel it first"
        )
        raise Problem(409, "wrong-state", detail, extra={"job_status": locked.status})
    # Lock them, so that no clone can choose one of them now.
    pinned = [
        checkpoint.id for checkpoint in checkpoints.lock_all(session, job.id) if checkpoint.pinned
    ]
    clones = repository.unfinished_clones(session, job.id)
    if clones:
        detail = (
            f"Clones that have not ended resume from its checkpoints: {', '.join(clones)}. Cancel them, or "
            "wait for their end"
        )
        raise Problem(409, "job-in-use", detail, extra={"jobs": list(clones)})
    if pinned:
        shown = ", ".join(pinned[:5])
        detail = f"Checkpoints of the job are pinned: {shown}. Unpin them first (dasl pin --off)"
        raise Problem(409, "job-in-use", detail, extra={"checkpoints": pinned[:5]})
    repository.hide(session, job.id, datetime.now(UTC))
