"""Finding a tenant's checkpoints and artifacts, and their files."""

from __future__ import annotations

import re

from sqlalchemy.orm import Session

from service import ids, lifecycle
from service.api.problems import Problem, field_problem, not_found
from service.api.ranged_file import StoredFile
from service.checkpoints import repository, retention
from service.checkpoints.schemas import FILE_NAME
from service.db.models import Checkpoint
from service.jobs import service as jobs


def get(session: Session, tenant: str, checkpoint_id: str, *, keep: bool = False) -> Checkpoint:
    """A tenant's checkpoint; `keep`: locked until the transaction ends.

    Raises:
        Problem: 404.
    """
    known = ids.is_id("ckpt", checkpoint_id)
    checkpoint = repository.get(session, tenant, checkpoint_id, keep=keep) if known else None
    if checkpoint is None:
        raise not_found("checkpoint", checkpoint_id)
    return checkpoint


def pin(session: Session, tenant: str, checkpoint_id: str, pinned: bool) -> Checkpoint:
    """Keep a checkpoint whatever its job's settings say, or no longer.

    Raises:
        Problem: 404; 410, it was deleted, or is damaged.
    """
    checkpoint = get(session, tenant, checkpoint_id, keep=True)
    _check_there(checkpoint)
    checkpoint.pinned = pinned
    session.flush()
    return checkpoint


def delete(session: Session, tenant: str, checkpoint_id: str) -> None:
    """Delete a checkpoint; again is no change.

    Raises:
        Problem: 404; 409, it is pinned, or something may still go on from it.
    """
    checkpoint = get(session, tenant, checkpoint_id)
    # The job's row first, as whoever starts an attempt does: nobody chooses it meanwhile.
    job = lifecycle.lock(session, checkpoint.job_id)
    assert job is not None, "a checkpoint has a job"
    retention.delete(session, job, get(session, tenant, checkpoint_id, keep=True))


def _check_there(checkpoint: Checkpoint) -> None:
    if checkpoint.state == repository.DAMAGED:
        detail = f"The files of the checkpoint {checkpoint.id} are not those that were registered"
        raise Problem(410, "checkpoint-damaged", detail)
    if checkpoint.state != repository.REGISTERED:
        raise Problem(410, "checkpoint-deleted", f"The checkpoint {checkpoint.id} was deleted")


def file(session: Session, tenant: str, checkpoint_id: str, name: str) -> StoredFile:
    """A file of a checkpoint's manifest; nothing else in its folder can be had.

    Raises:
        Problem: 404, 410 when it was deleted or is damaged, or 422 for a name that could leave the folder.
    """
    checkpoint = get(session, tenant, checkpoint_id)
    _check_name(name)
    _check_there(checkpoint)
    for entry in checkpoint.files:
        if entry["name"] == name:
            uri = f"{checkpoint.uri}/{name}"
            return StoredFile(name, uri, entry["size"], entry["sha256"])
    raise not_found(f"file in checkpoint {checkpoint_id}:", name)


def artifact(session: Session, tenant: str, job_id: str, name: str) -> StoredFile:
    """An artifact of a job.

    Raises:
        Problem: 404, or 422 for a name that could leave the folder.
    """
    jobs.get(session, tenant, job_id)
    _check_name(name)
    row = repository.artifact(session, job_id, name)
    if row is None:
        raise not_found(f"artifact of {job_id}:", name)
    return StoredFile(name, row.uri, row.size, row.sha256, row.content_type)


def _check_name(name: str) -> None:
    if not re.fullmatch(FILE_NAME, name) or len(name) > 200:
        problem = field_problem("name", "is not a plain file name", name, "a name without folders")
        raise Problem(422, "unsafe-name", str(problem.detail), errors=problem.errors)
