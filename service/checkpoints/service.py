"""Find, pin and delete a tenant's checkpoints; locate their files and artifacts."""

import re
from datetime import UTC, datetime

from sqlalchemy.orm import Session

from dasl_core.vocabulary import CERTIFICATE, FILE_NAME, LONGEST_FILE_NAME
from service import ids
from service.api import references
from service.api.problems import Problem, field_problem, not_found
from service.api.ranged_file import StoredFile
from service.checkpoints import repository, retention
from service.db.locks import lock_job
from service.db.models import Checkpoint, Job
from service.db.rows import owned
from service.states import TERMINAL
from service.wire.checkpoints import DeletedCheckpoints, Verification

BEST, FINAL = "best", "final"


def get(session: Session, tenant: str, checkpoint_id: str, job_id: str | None = None) -> Checkpoint:
    """Return a tenant's checkpoint by id, or the best or final checkpoint of a job.

    Raises:
        Problem: 404; 422, `job` is missing or has no effect.
    """
    if checkpoint_id in (BEST, FINAL):
        return _of_job(session, tenant, checkpoint_id, job_id)
    if job_id is not None:
        message = f"has no effect with the id of a checkpoint; remove it, or request {BEST!r} or {FINAL!r}"
        raise field_problem("job", message, job_id)
    is_id = ids.is_id("ckpt", checkpoint_id)
    checkpoint = repository.get(session, tenant, checkpoint_id) if is_id else None
    if checkpoint is None:
        raise not_found("checkpoint", checkpoint_id)
    return checkpoint


def _of_job(session: Session, tenant: str, alias: str, job_id: str | None) -> Checkpoint:
    if job_id is None:
        message = f"is missing: {alias!r} is a checkpoint of a job"
        raise field_problem("job", message, "", f"checkpoints/{alias}?job=JOB")
    job = references.get(session, owned(Job, tenant), "job", job_id, "job")
    available = repository.available(session, job.id)
    if alias == FINAL:
        checkpoint = max(available, key=lambda item: (item.final, item.step, item.id), default=None)
    else:
        checkpoint = retention.best(job.resolved_spec.checkpoints, available[::-1])
    if checkpoint is None:
        raise not_found(f"checkpoint of {job.id}:", alias)
    return checkpoint


def pin(session: Session, checkpoint: Checkpoint, pinned: bool) -> None:
    """Pin a checkpoint, so that it is kept regardless of its job's settings, or unpin it.

    Raises:
        Problem: 410, it was deleted or is damaged.
    """
    # Lock the job's row first, as in `delete` and in retention, to avoid deadlocks.
    lock_job(session, checkpoint.job_id)
    repository.lock(session, checkpoint)
    check_available(checkpoint)
    was_pinned, checkpoint.pinned = checkpoint.pinned, pinned
    if was_pinned and not pinned:  # retention by age may have skipped it
        repository.examine_again(session, checkpoint.job_id)
    session.flush()


def verify(session: Session, checkpoint: Checkpoint, verification: Verification) -> None:
    """Record the result of `dasl verify`.

    Raises:
        Problem: 409, it is of another certificate; 410, the checkpoint was deleted or is damaged.
    """
    lock_job(session, checkpoint.job_id)
    repository.lock(session, checkpoint)
    check_available(checkpoint)
    [digest] = [f["sha256"] for f in checkpoint.files if f["name"] == CERTIFICATE] or [None]
    if digest != verification.certificate:
        detail = f"verification.certificate: {digest} is that of the checkpoint. Download it again, and verify that."
        raise Problem(409, "other-certificate", detail)
    at = datetime.now(UTC).isoformat()
    checkpoint.verification = verification.model_dump() | {"at": at}
    session.flush()


def delete(session: Session, checkpoint: Checkpoint) -> None:
    """Delete a checkpoint. Idempotent.

    Raises:
        Problem: 409, it is pinned, or a job may still resume from it.
    """
    # Lock the job's row first, like `lifecycle.start_attempt`, so that no attempt can choose the checkpoint now.
    job = lock_job(session, checkpoint.job_id)
    assert job is not None, "a checkpoint has a job"
    repository.lock(session, checkpoint)
    retention.delete(session, job, checkpoint)


def thin(session: Session, job: Job) -> DeletedCheckpoints:
    """Delete the checkpoints of an ended job except the newest, final, best and pinned ones.

    Checkpoints with evaluations, embeddings or exports stay as well, and start checkpoints of unfinished clones.

    Raises:
        Problem: 404, the job was deleted concurrently; 409, it has not ended.
    """
    locked = lock_job(session, job.id)
    if locked is None or locked.deleted_at is not None:
        raise not_found("job", job.id)
    if locked.status not in TERMINAL:
        detail = f"The job is {locked.status} and may resume from its checkpoints. Wait for its end, or cancel it"
        raise Problem(409, "wrong-state", detail, extra={"job_status": locked.status})
    dropped = retention.drop_checkpoints(session, locked)
    return DeletedCheckpoints(deleted=dropped.checkpoints, bytes=dropped.bytes)


def check_available(checkpoint: Checkpoint) -> None:
    """Check that the files of a checkpoint can be used.

    Raises:
        Problem: 410, it was deleted or is damaged.
    """
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
    check_available(checkpoint)
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
