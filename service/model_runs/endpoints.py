"""`/v1/checkpoints/{id}/evaluations`, `/embeddings` and `/exports`, and `/v1/model-runs`."""

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Response

from service.api.auth import Submitter
from service.api.own import to_change, to_read
from service.api.pagination import Page, Window, page, window
from service.api.ranged_file import FileRoute, StoredFile, download
from service.api.transaction import ReadSession, Route, WriteSession
from service.checkpoints.endpoints import OwnCheckpoint, OwnCheckpointToChange
from service.db.models import Checkpoint, ModelRun
from service.model_runs import service
from service.model_runs.schemas import EmbeddingRequest, EvaluationRequest, ExportRequest
from service.protocol import ModelRunKind
from service.tasks import service as tasks
from service.tasks.repository import model_runs
from service.wire.model_runs import ModelRunView

router = APIRouter(prefix="/v1", tags=["model runs"], route_class=Route)
files = APIRouter(prefix="/v1/model-runs", tags=["model runs"], route_class=FileRoute)

_CREATED: dict[str, Any] = {
    "status_code": 201,
    "responses": {200: {"model": ModelRunView, "description": "An equal run exists"}},
}


_find = partial(tasks.get, model_runs)
OwnModelRun = Annotated[ModelRun, to_read("model_run_id", _find)]
OwnModelRunToChange = Annotated[ModelRun, to_change("model_run_id", _find)]
RunWindow = Annotated[Window, window("mrun")]


@router.post("/checkpoints/{checkpoint_id}/evaluations", **_CREATED)
def request_evaluation(
    checkpoint: OwnCheckpointToChange,
    request: EvaluationRequest,
    response: Response,
    caller: Submitter,
    session: WriteSession,
) -> ModelRunView:
    """Evaluate a checkpoint's backbone on a data set, as its training does on held-out images.

    An equal evaluation that is queued, running or succeeded is returned with status 200.
    """
    return _requested(service.evaluate(session, caller, checkpoint, request), response)


@router.post("/checkpoints/{checkpoint_id}/embeddings", **_CREATED)
def request_embedding(
    checkpoint: OwnCheckpointToChange,
    request: EmbeddingRequest,
    response: Response,
    caller: Submitter,
    session: WriteSession,
) -> ModelRunView:
    """Embed all images of a data set with a checkpoint's backbone; an equal embedding is returned with status 200."""
    return _requested(service.embed(session, caller, checkpoint, request), response)


@router.post("/checkpoints/{checkpoint_id}/exports", **_CREATED)
def request_export(
    checkpoint: OwnCheckpointToChange,
    request: ExportRequest,
    response: Response,
    caller: Submitter,
    session: WriteSession,
) -> ModelRunView:
    """Convert a checkpoint's backbone to another format; an equal export is returned with status 200."""
    return _requested(service.export(session, caller, checkpoint, request), response)


def _requested(requested: tuple[ModelRun, bool], response: Response) -> ModelRunView:
    run, is_new = requested
    if not is_new:
        response.status_code = 200
    response.headers["Location"] = f"/v1/model-runs/{run.id}"
    return ModelRunView.model_validate(run)


@router.get("/checkpoints/{checkpoint_id}/evaluations")
def list_evaluations(
    checkpoint: OwnCheckpoint, session: ReadSession, window: RunWindow
) -> Page[ModelRunView]:
    """List a checkpoint's evaluations on other data sets, newest first."""
    return _page(session, checkpoint, "evaluation", window)


@router.get("/checkpoints/{checkpoint_id}/embeddings")
def list_embeddings(
    checkpoint: OwnCheckpoint, session: ReadSession, window: RunWindow
) -> Page[ModelRunView]:
    """List a checkpoint's embeddings, newest first."""
    return _page(session, checkpoint, "embedding", window)


@router.get("/checkpoints/{checkpoint_id}/exports")
def list_exports(
    checkpoint: OwnCheckpoint, session: ReadSession, window: RunWindow
) -> Page[ModelRunView]:
    """List a checkpoint's exports, newest first."""
    return _page(session, checkpoint, "export", window)


def _page(
    session: ReadSession, checkpoint: Checkpoint, kind: ModelRunKind, window: Window
) -> Page[ModelRunView]:
    rows = model_runs.of_checkpoint(session, checkpoint.id, kind, *window)
    return page(rows, window.limit, ModelRunView.model_validate)


@router.get("/model-runs/{model_run_id}")
def show_model_run(run: OwnModelRun) -> ModelRunView:
    """Show an evaluation, an embedding or an export, with its progress, and its result and files once it has succeeded."""
    return ModelRunView.model_validate(run)


@router.delete("/model-runs/{model_run_id}", status_code=204, response_class=Response)
def delete_model_run(run: OwnModelRunToChange, session: WriteSession) -> None:
    """Delete an evaluation, an embedding or an export with its files, and stop it if it runs."""
    tasks.delete(session, model_runs, run)


@download(files, "/{model_run_id}/files/{name:path}")
def download_model_run_file(run: OwnModelRun, name: str, session: ReadSession) -> StoredFile:
    """Download a file of an embedding or export, or a part of it."""
    return service.file(run, name)
