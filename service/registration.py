"""Registration of checkpoints, which makes them available to users and to the next attempt."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy.orm import Session

from service import ids, lifecycle
from service.checkpoints import repository as checkpoints
from service.checkpoints import retention
from service.db.models import Checkpoint, Job
from service.db.rows import add
from service.protocol import CheckpointReport


def register(
    session: Session, job: Job, number: int, report: CheckpointReport, *, adopted: bool = False
) -> str:
    """Register a complete checkpoint of a locked job and return its id. Idempotent: a URI is registered once.

    A job that has ended gets no event, because its last event must be its end.

    Args:
        number: number of the attempt that wrote it.
        adopted: whether the attempt ended before its report was delivered.
    """
    registered = checkpoints.by_uri(session, report.uri)
    if registered is not None:
        return registered.id
    step, final = report.step, report.final
    size = sum(entry.size for entry in report.files)
    checkpoint = Checkpoint(
        id=ids.new_id("ckpt"),
        job_id=job.id,
        attempt=number,
        step=step,
        epoch=report.epoch,
        uri=report.uri,
        files=[entry.model_dump() for entry in report.files],
        metrics=report.metrics,
        state=checkpoints.REGISTERED,
        final=final,
        size=size,
        created_at=datetime.now(UTC),
    )
    add(session, checkpoint)
    data: dict[str, Any] = {
        "id": checkpoint.id,
        "step": step,
        "epoch": report.epoch,
        "final": final,
        "size": size,
    }
    message = f"{'Final checkpoint' if final else 'Checkpoint'} {checkpoint.id} at step {step}"
    if adopted:
        lifecycle.count_adopted_progress(session, job, number)
        message += f", which attempt {number} wrote but could not report"
        data["adopted"] = True
    lifecycle.append_event(session, job.id, "checkpoint", message, data)
    retention.mark_obsolete(session, job)
    return checkpoint.id
