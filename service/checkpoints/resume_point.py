"""The checkpoint that a job's next attempt resumes from, and the job's progress there."""

from typing import Any

from sqlalchemy.orm import Session

from service.checkpoints import repository
from service.db.models import Checkpoint, Job


def find(session: Session, job: Job) -> Checkpoint | None:
    """Return the newest registered checkpoint, or the checkpoint that the job was cloned from."""
    newest = repository.newest(session, job.id)
    if newest is None and job.start_checkpoint_id is not None:
        return repository.by_id(session, job.start_checkpoint_id)
    return newest


def progress_at(job: Job, resume: Checkpoint | None) -> dict[str, Any] | None:
    """Return a job's progress at the resume point, which may be behind the previous attempt's end."""
    if resume is None:
        return None
    progress = lasting_progress(job)
    if progress.get("step") != resume.step:
        progress.pop("loss", None)
    return {**progress, "step": resume.step, "epoch": resume.epoch}


def verdict_at(job: Job, resume: Checkpoint | None) -> dict[str, Any] | None:
    """Return a job's verdict if it resumes after its last evaluation; otherwise it will report another one."""
    return job.verdict if resume is not None and resume.final else None


def lasting_progress(job: Job) -> dict[str, Any]:
    """Return the part of a job's progress that stays valid until a newer report."""
    progress = job.progress or {}
    names = ("step", "total_steps", "epoch", "epochs", "loss")
    return {name: progress[name] for name in names if name in progress}
