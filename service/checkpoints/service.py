"""Find, pin and delete a tenant's checkpoints; locate their files and artifacts."""

from __future__ import annotations

import re

from sqlalchemy.orm import Session

from dasl_core.vocabulary import FILE_NAME, LONGEST_FILE_NAME
from service import ids
from service.api.problems import Problem, field_problem, not_found
from service.api.ranged_file import StoredFile
from service.checkpoints import repository, retention
from service.db.locks import lock_job
from service.db.models import Checkpoint


def get(session: Session, tenant: str, checkpoint_id: str) -> Checkpoint:
    """Return a tenant's checkpoint.

    Raises:
        Problem: 404.
    """
    is_id = ids.is_id("ckpt", checkpoint_id)
    checkpoint = repository.get(session, tenant, checkpoint_id) if is_id else None
    if checkpoint is None:
        raise not_found("checkpoint", checkpoint_id)
    return checkpoint


def pin(session: Session, checkpoint: Checkpoint, pinned: bool) -> None:
    """Pin a checkpoint, so that it is kept regardless of its job's settings, or unpin it.

    Raises:
        Problem: 410, it was deleted or is damaged.
    """
    repository.lock(session, checkpoint)
    _check_available(checkpoint)
    checkpoint.pinned = pinned
    if not pinned:  # retention by age has passed over it
        repository.examine_again(session, checkpoint.job_id)
    session.flush()


def delete(session: Session, checkpoint: Checkpoint) -> None:
    """Delete a checkpoint; a repetition changes nothing.

    Raises:
        Problem: 409, it is pinned, or a job may still resume from it.
    """
    # The job's row first, in the order of `lifecycle.start_attempt`: no attempt can choose it now.
    job = lock_job(session, checkpoint.job_id)
    assert job is not None, "a checkpoint has a job"
    repository.lock(session, checkpoint)
    retention.delete(session, job, checkpoint)


def _check_available(checkpoint: Checkpoint) -> None:
    if checkpoint.state == repository.DAMAGED:
        detail = f"The checkpoint {checkpoint.id} is damaged: its files differ from the manifest"
        raise Problem(410, "checkpoint-damaged", detail)
    if checkpoint.state != repository.REGISTERED:
        raise Problem(410, "checkpoint-deleted", f"The checkpoint {checkpoint.id} was deleted")


def file(checkpoint: Checkpoint, name: str) -> StoredFile:
    """Locate a file of a checkpoint's manifest; other files in its folder cannot be downloaded.

    Raises:
        Problem: 404, no such file; 410, the checkpoint was deleted or is damaged; 422, the name could
            leave the folder.
    """
    _check_name(name)
    _check_available(checkpoint)
    for entry in checkpoint.files:
        if entry["name"] == name:
            uri = f"{checkpoint.uri}/{name}"
            return StoredFile(name, uri, entry["size"], entry["sha256"])
    raise not_found(f"file in checkpoint {checkpoint.id}:", name)


def artifact(session: Session, job_id: str, name: str) -> StoredFile:
    """Locate an artifact of a job.

    Raises:
        Problem: 404, no such artifact; 422, the name could leave the folder.
    """
    _check_name(name)
    row = repository.artifact(session, job_id, name)
    if row is None:
        raise not_found(f"artifact of {job_id}:", name)
    return StoredFile(name, row.uri, row.size, row.sha256, row.content_type)


def _check_name(name: str) -> None:
    if not re.fullmatch(FILE_NAME, name) or len(name) > LONGEST_FILE_NAME:
        problem = field_problem("name", "is not a plain file name", name, "a name without folders")
        raise Problem(422, "unsafe-name", str(problem.detail), errors=problem.errors)
