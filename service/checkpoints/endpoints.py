"""`/v1/checkpoints`: show, pin, delete and download checkpoints."""

from typing import Annotated, Self

from fastapi import APIRouter, Depends, Query, Response
from pydantic import ConfigDict, Field, model_validator

from dasl_core.spec.base import problem
from service.api.auth import Reader, Submitter
from service.api.changes import Changes
from service.api.ranged_file import FileRoute, StoredFile, download
from service.api.transaction import InTransaction, ReadSession, Route, WriteSession
from service.checkpoints import service
from service.db.models import Checkpoint
from service.wire.checkpoints import CheckpointView, Verification

router = APIRouter(prefix="/v1/checkpoints", tags=["checkpoints"], route_class=Route)
files = APIRouter(prefix="/v1/checkpoints", tags=["checkpoints"], route_class=FileRoute)


class CheckpointPatch(Changes):
    """Changes to a checkpoint."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"pinned": True}]})

    pinned: Annotated[bool, Field(description="Keep it regardless of the job's settings.")] = False
    verification: Verification | None = None

    @model_validator(mode="after")
    def _check_given(self) -> Self:
        if not self.model_fields_set or (
            "verification" in self.model_fields_set and self.verification is None
        ):
            raise problem("is empty", "{}", "pinned, verification or both")
        return self


OfJob = Annotated[
    str | None,
    Query(
        max_length=100,
        description="Id of a job, whose checkpoint `best` or `final` may then replace the id.",
    ),
]


async def _get(
    checkpoint_id: str, caller: Reader, session: ReadSession, job: OfJob = None
) -> InTransaction:
    return InTransaction(session, lambda: service.get(session, caller.tenant, checkpoint_id, job))


async def _get_to_change(
    checkpoint_id: str, caller: Submitter, session: WriteSession, job: OfJob = None
) -> InTransaction:
    return InTransaction(session, lambda: service.get(session, caller.tenant, checkpoint_id, job))


OwnCheckpoint = Annotated[Checkpoint, Depends(_get)]
"""The checkpoint of the path, if it belongs to the caller's tenant; otherwise 404. Needs a `ReadSession`."""
OwnCheckpointToChange = Annotated[Checkpoint, Depends(_get_to_change)]
"""Like `OwnCheckpoint`, for callers who may submit. Needs a `WriteSession`."""


@router.get("/{checkpoint_id}")
def show_checkpoint(checkpoint: OwnCheckpoint) -> CheckpointView:
    """Show a checkpoint's manifest: its files with size and sha256."""
    return CheckpointView.model_validate(checkpoint)


@router.patch("/{checkpoint_id}")
def change_checkpoint(
    checkpoint: OwnCheckpointToChange, changes: CheckpointPatch, session: WriteSession
) -> CheckpointView:
    """Pin or unpin a checkpoint, or record the result of `dasl verify`."""
    if "pinned" in changes.model_fields_set:
        service.pin(session, checkpoint, changes.pinned)
    if changes.verification is not None:
        service.verify(session, checkpoint, changes.verification)
    return CheckpointView.model_validate(checkpoint)


@router.delete("/{checkpoint_id}", status_code=204, response_class=Response)
def delete_checkpoint(checkpoint: OwnCheckpointToChange, session: WriteSession) -> None:
    """Delete a checkpoint; 409 while it is pinned, or a job may still resume from it."""
    service.delete(session, checkpoint)


# `:path`, so that a name with a slash is refused instead of matching another route.
@download(files, "/{checkpoint_id}/files/{name:path}")
def download_checkpoint_file(
    checkpoint: OwnCheckpoint, name: str, session: ReadSession
) -> StoredFile:
    """Download a file of a checkpoint or a part of it."""
    return service.file(checkpoint, name)
