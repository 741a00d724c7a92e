"""`/v1/datasets/{id}/previews` and `/v1/previews`: draw views of a data set as a spec would."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Response

from service.api.auth import Submitter
from service.api.own import to_change, to_read
from service.api.pagination import Page, Window, page, window
from service.api.ranged_file import FileRoute, StoredFile, download
from service.api.transaction import ReadSession, Route, WithContext, WriteSession
from service.datasets.endpoints import OwnDataset
from service.db.models import Preview
from service.jobs import idempotency, previews
from service.jobs.checked_specs import check_spec
from service.jobs.idempotency import IdempotencyKey
from service.jobs.path_checks import CheckedSpec
from service.previews.schemas import PreviewRequest
from service.previews.service import file, preview_view
from service.tasks import service as tasks
from service.tasks.repository import previews as kind
from service.wire.previews import PreviewSummary, PreviewView

router = APIRouter(prefix="/v1", tags=["previews"], route_class=Route)
files = APIRouter(prefix="/v1/previews", tags=["previews"], route_class=FileRoute)


@dataclass(frozen=True)
class _Checked:
    request: PreviewRequest
    checked: CheckedSpec


async def _to_preview(
    dataset_id: str, request: PreviewRequest, caller: Submitter, context: WithContext
) -> _Checked:
    spec = previews.build_spec(dataset_id, request.spec, request.version)
    return _Checked(request, await check_spec(context, caller, spec))


CheckedRequest = Annotated[_Checked, Depends(_to_preview)]
_find = partial(tasks.get, kind)
OwnPreview = Annotated[Preview, to_read("preview_id", _find)]
OwnPreviewToChange = Annotated[Preview, to_change("preview_id", _find)]


@router.post("/datasets/{dataset_id}/previews", status_code=201, response_model=PreviewView)
def request_preview(
    dataset_id: str,
    checked: CheckedRequest,
    caller: Submitter,
    context: WithContext,
    session: WriteSession,
    key: IdempotencyKey = None,
) -> Response:
    """Draw the views of the first images of a training; the spec is checked and resolved as for a job.

    They are drawn in the background; tenants take turns. A request repeated with the same `Idempotency-Key` gets
    the first answer.
    """
    limit = context.settings.cluster_limit
    answer, repeated = previews.submit(
        session, caller, dataset_id, checked.request, checked.checked, key, limit
    )
    return idempotency.respond("previews", answer, repeated)


@router.get("/datasets/{dataset_id}/previews")
def list_previews(
    dataset: OwnDataset, session: ReadSession, window: Annotated[Window, window("prev")]
) -> Page[PreviewSummary]:
    """List a data set's previews, newest first."""
    rows = kind.newest(session, dataset.id, *window)
    return page(rows, window.limit, PreviewSummary.model_validate)


@router.get("/previews/{preview_id}")
def show_preview(preview: OwnPreview) -> PreviewView:
    """Show a preview, with its files once it has succeeded."""
    return preview_view(preview)


@router.delete("/previews/{preview_id}", status_code=204, response_class=Response)
def delete_preview(preview: OwnPreviewToChange, session: WriteSession) -> None:
    """Delete a preview, even while it is being drawn."""
    tasks.delete(session, kind, preview)


@download(files, "/{preview_id}/files/{name:path}")
def download_preview_file(preview: OwnPreview, name: str, session: ReadSession) -> StoredFile:
    """Download a file of a preview or a part of it."""
    return file(preview, name)
