"""`/v1/jobs/{id}/checkpoints` and `/artifacts`: the files that a job produced."""

from fastapi import APIRouter

from service.api.pagination import Page
from service.api.ranged_file import FileRoute, StoredFile, download
from service.api.transaction import ReadSession, Route, WriteSession
from service.checkpoints import repository, service
from service.jobs.dependencies import OwnJob, OwnJobToChange
from service.wire.checkpoints import ArtifactView, CheckpointView, DeletedCheckpoints

router = APIRouter(prefix="/v1/jobs", tags=["checkpoints"], route_class=Route)
files = APIRouter(prefix="/v1/jobs", tags=["checkpoints"], route_class=FileRoute)


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


@download(files, "/{job_id}/artifacts/{name:path}")
def download_artifact(job: OwnJob, name: str, session: ReadSession) -> StoredFile:
    """Download an artifact or a part of it."""
    return service.artifact(session, job.id, name)
