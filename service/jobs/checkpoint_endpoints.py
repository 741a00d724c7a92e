"""`/v1/jobs/{id}/checkpoints` and `/artifacts`: the files that a job produced."""

from collections.abc import Callable
from functools import partial

from fastapi import APIRouter, Request, Response

from service.api import ranged_file
from service.api.pagination import Page
from service.api.transaction import ReadSession, Route, StoreRoute, WithContext, WriteSession
from service.checkpoints import repository, service
from service.jobs.dependencies import OwnJob, OwnJobToChange
from service.wire.checkpoints import ArtifactView, CheckpointView, DeletedCheckpoints

router = APIRouter(prefix="/v1/jobs", tags=["checkpoints"], route_class=Route)
files = APIRouter(prefix="/v1/jobs", tags=["checkpoints"], route_class=StoreRoute)


@router.get("/{job_id}/checkpoints")
def list_checkpoints(job: OwnJob, session: ReadSession) -> Page[CheckpointView]:
    """List a job's checkpoints, oldest first."""
    rows = repository.available(session, job.id)
    return Page(data=[CheckpointView.model_validate(row) for row in rows])


@router.delete("/{job_id}/checkpoints")
def delete_checkpoints(job: OwnJobToChange, session: WriteSession) -> DeletedCheckpoints:
    """Delete a job's checkpoints except the newest, final, best, pinned and used ones; 409 if it has not ended."""
    return service.thin(session, job)


@router.get("/{job_id}/artifacts")
def list_artifacts(job: OwnJob, session: ReadSession) -> Page[ArtifactView]:
    """List a job's files other than checkpoints, such as plots."""
    rows = repository.artifacts(session, job.id)
    return Page(data=[ArtifactView.model_validate(row) for row in rows])


@files.head("/{job_id}/artifacts/{name:path}", include_in_schema=False)
@files.get(
    "/{job_id}/artifacts/{name:path}", response_class=Response, responses=ranged_file.RESPONSES
)
def download_artifact(
    job: OwnJob, name: str, request: Request, context: WithContext, session: ReadSession
) -> Callable[[], Response]:
    """Download an artifact or a part of it."""
    file = service.artifact(session, job.id, name)
    return partial(ranged_file.answer, request, context, file)
