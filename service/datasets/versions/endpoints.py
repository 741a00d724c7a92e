"""`/v1/datasets/{dataset_id}`: refresh a data set, list its versions, and show some of its images."""

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from service.api import ranged_file
from service.api.auth import Submitter
from service.api.pagination import Limit, Page, page
from service.api.problems import Problem
from service.api.ranged_file import StoredFile
from service.api.transaction import (
    Context,
    ReadSession,
    Route,
    StoreRoute,
    WithContext,
    WriteSession,
)
from service.datasets.endpoints import OwnDataset, OwnDatasetToChange
from service.datasets.versions import repository, service
from service.db.models import DatasetVersion
from service.protocol import CONTACT_SHEET
from service.wire.datasets import DatasetView, VersionView

_MAX_NUMBER = 2**31 - 1  # largest value of the column

router = APIRouter(prefix="/v1/datasets/{dataset_id}", tags=["datasets"], route_class=Route)
files = APIRouter(prefix="/v1/datasets/{dataset_id}", tags=["datasets"], route_class=StoreRoute)


@router.post("/refresh", status_code=202)
def refresh_dataset(
    dataset: OwnDatasetToChange, caller: Submitter, session: WriteSession
) -> DatasetView:
    """Read the images again in the background; changes make a new version. Idempotent while a refresh runs."""
    return DatasetView.model_validate(service.refresh(session, caller, dataset))


@router.get("/versions")
def list_versions(
    dataset: OwnDataset,
    session: ReadSession,
    after: Annotated[
        int | None, Query(ge=1, le=_MAX_NUMBER, description="`next` of the previous page.")
    ] = None,
    limit: Limit = 50,
) -> Page[VersionView]:
    """List the versions of a data set, newest first."""
    rows = repository.newest(session, dataset, before=after, limit=limit)
    return page(rows, limit, _view, lambda row: str(row.number))


def _view(row: DatasetVersion) -> VersionView:
    return VersionView(
        number=row.number,
        created_at=row.created_at,
        facts=row.facts,
        changes=(row.report or {}).get("changes"),
        removed=row.removed_at is not None,
    )


@ranged_file.download(files, "/contact-sheet", "image/jpeg")
def show_contact_sheet(
    dataset: OwnDataset, request: Request, context: WithContext, session: ReadSession
) -> Callable[[], Response]:
    """Download thumbnails of up to 64 images, as one JPEG; 404 if the data set was ingested without them."""
    uri = service.contact_sheet_uri(dataset)
    return partial(_answer, request, context, dataset.name, uri)


def _answer(request: Request, context: Context, name: str, uri: str) -> Response:
    size = context.storage.size(uri)
    if size is None:
        detail = f"{name} was ingested without a contact sheet; refresh it"
        raise Problem(404, "no-contact-sheet", detail)
    # Each ingest has its own folder, so the file never changes.
    tag = hashlib.sha256(f"{uri} {size}".encode()).hexdigest()
    file = StoredFile(f"{name}-{CONTACT_SHEET}", uri, size, tag, "image/jpeg")
    return ranged_file.answer(request, context, file)
