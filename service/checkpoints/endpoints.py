"""`/v1/checkpoints`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from service.api import ranged_file
from service.api.auth import Reader, Submitter
from service.api.transaction import InTransaction, ReadSession, Route, WithContext, WriteSession
from service.checkpoints import service
from service.checkpoints.schemas import CheckpointPatch, CheckpointView
from service.db.models import Checkpoint

router = APIRouter(prefix="/v1/checkpoints", tags=["checkpoints"], route_class=Route)


async def _own(checkpoint_id: str, caller: Reader, session: ReadSession) -> InTransaction:
    return InTransaction(session, lambda: service.get(session, caller.tenant, checkpoint_id))


async def _own_to_change(
    checkpoint_id: str, caller: Submitter, session: WriteSession
) -> InTransaction:
    return InTransaction(session, lambda: service.get(session, caller.tenant, checkpoint_id))


OwnCheckpoint = Annotated[Checkpoint, Depends(_own)]
"""The checkpoint of the path, of the caller's tenant; else 404. Needs a `ReadSession`."""
OwnCheckpointToChange = Annotated[Checkpoint, Depends(_own_to_change)]
"""As `OwnCheckpoint`, for callers who may submit. Needs a `WriteSession`."""


@router.get("/{checkpoint_id}")
def show_checkpoint(checkpoint: OwnCheckpoint) -> CheckpointView:
    """A checkpoint's manifest: its files with size and sha256."""
    return CheckpointView.model_validate(checkpoint)


@router.patch("/{checkpoint_id}")
def change_checkpoint(
    checkpoint: OwnCheckpointToChange, changes: CheckpointPatch, session: WriteSession
) -> CheckpointView:
    """Pin a checkpoint, or let it go."""
    service.pin(session, checkpoint, changes.pinned)
    return CheckpointView.model_validate(checkpoint)


@router.delete("/{checkpoint_id}", status_code=204, response_class=Response)
def delete_checkpoint(checkpoint: OwnCheckpointToChange, session: WriteSession) -> None:
    """Delete a checkpoint. 409 while it is pinned, or something may still go on from it."""
    service.delete(session, checkpoint)


# `:path`, so that a name with a slash is refused here and not taken for another address.
@router.head("/{checkpoint_id}/files/{name:path}", include_in_schema=False)
@router.get(
    "/{checkpoint_id}/files/{name:path}",
    response_class=Response,
    responses=ranged_file.RESPONSES,
)
def download_checkpoint_file(
    checkpoint: OwnCheckpoint,
    name: str,
    request: Request,
    context: WithContext,
    session: ReadSession,
) -> Response:
    """One file of a checkpoint, or a part of it."""
    file = service.file(checkpoint, name)
    session.close()  # The store may be far away: no transaction is open while it is asked.
    return ranged_file.answer(request, context.storage, file)
