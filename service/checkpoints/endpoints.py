"""`/v1/checkpoints`, and a job's checkpoints and artifacts with their files."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from service.api import ranged_file
from service.api.auth import Reader, Submitter
from service.api.pagination import Page
from service.api.transaction import ReadSession, Route, WithContext, WriteSession
from service.checkpoints import repository, service
from service.checkpoints.schemas import ArtifactView, CheckpointPatch, CheckpointView
from service.jobs import service as jobs

router = APIRouter(prefix="/v1", tags=["checkpoints"], route_class=Route)
_FILE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {"schema": {"type": "string"}}}},
    206: {"description": "The part that `Range` names."},
    304: {"description": "The client has it (`If-None-Match`)."},
}


@router.get("/jobs/{job_id}/checkpoints")
def list_checkpoints(job_id: str, caller: Reader, session: ReadSession) -> Page[CheckpointView]:
    """A job's checkpoints, oldest first."""
    jobs.get(session, caller.tenant, job_id)
    rows = repository.of_job(session, job_id)
    return Page(data=[CheckpointView.model_validate(row) for row in rows])


@router.get("/checkpoints/{checkpoint_id}")
def show_checkpoint(checkpoint_id: str, caller: Reader, session: ReadSession) -> CheckpointView:
    """A checkpoint's manifest: its files with size and sha256."""
    return CheckpointView.model_validate(service.get(session, caller.tenant, checkpoint_id))


@router.patch("/checkpoints/{checkpoint_id}")
def change_checkpoint(
    checkpoint_id: str, changes: CheckpointPatch, caller: Submitter, session: WriteSession
) -> CheckpointView:
    """Pin a checkpoint, or let it go."""
    found = service.pin(session, caller.tenant, checkpoint_id, changes.pinned)
    return CheckpointView.model_validate(found)


@router.delete("/checkpoints/{checkpoint_id}", status_code=204, response_class=Response)
def delete_checkpoint(checkpoint_id: str, caller: Submitter, session: WriteSession) -> None:
    """Delete a checkpoint. 409 while it is pinned, or something may still go on from it."""
    service.delete(session, caller.tenant, checkpoint_id)


# `:path`, so that a name with a slash is refused here and not taken for another address.
@router.head("/checkpoints/{checkpoint_id}/files/{name:path}", include_in_schema=False)
@router.get(
    "/checkpoints/{checkpoint_id}/files/{name:path}", response_class=Response, responses=_FILE
)
def download_checkpoint_file(
    checkpoint_id: str,
    name: str,
    request: Request,
    caller: Reader,
    context: WithContext,
    session: ReadSession,
) -> Response:
    """One file of a checkpoint, or a part of it."""
    file = service.file(session, caller.tenant, checkpoint_id, name)
    session.close()  # The store may be far away: no transaction is open while it is asked.
    return ranged_file.answer(request, context.storage, file)


@router.get("/jobs/{job_id}/artifacts")
def list_artifacts(job_id: str, caller: Reader, session: ReadSession) -> Page[ArtifactView]:
    """Files that a job left beside its checkpoints."""
    jobs.get(session, caller.tenant, job_id)
    rows = repository.artifacts(session, job_id)
    return Page(data=[ArtifactView.model_validate(row) for row in rows])


@router.head("/jobs/{job_id}/artifacts/{name:path}", include_in_schema=False)
@router.get("/jobs/{job_id}/artifacts/{name:path}", response_class=Response, responses=_FILE)
def download_artifact(
    job_id: str,
    name: str,
    request: Request,
    caller: Reader,
    context: WithContext,
    session: ReadSession,
) -> Response:
    """One artifact, or a part of it."""
    file = service.artifact(session, caller.tenant, job_id, name)
    session.close()
    return ranged_file.answer(request, context.storage, file)
