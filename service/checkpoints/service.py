"""Finding a tenant's checkpoints and artifacts, and their files."""

from __future__ import annotations

import re

from sqlalchemy.orm import Session

from service import ids
from service.checkpoints import repository
from service.checkpoints.schemas import FILE_NAME
from service.db.models import Checkpoint
from service.downloads import StoredFile
from service.jobs import service as jobs
from service.problems import Problem, field_problem, not_found


def get(session: Session, tenant: str, checkpoint_id: str) -> Checkpoint:
    """A tenant's checkpoint.

    Raises:
        Problem: 404.
    """
    known = ids.is_id("ckpt", checkpoint_id)
    checkpoint = repository.get(session, tenant, checkpoint_id) if known else None
    if checkpoint is None:
        raise not_found("checkpoint", checkpoint_id)
    return checkpoint


def file(session: Session, tenant: str, checkpoint_id: str, name: str) -> StoredFile:
    """A file of a checkpoint's manifest; nothing else in its folder can be had.

    Raises:
        Problem: 404, or 422 for a name that could leave the folder.
    """
    checkpoint = get(session, tenant, checkpoint_id)
    _check_name(name)
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
