"""`/v1/datasets`: register, list, show and delete data sets."""

from functools import partial
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Depends, Query, Response
from sqlalchemy.orm import defer

from service.api.auth import Reader, Submitter
from service.api.own import to_change, to_read
from service.api.pagination import Page, Window, page, window
from service.api.problems import FULL
from service.api.transaction import ReadSession, Route, WithContext, WriteSession
from service.datasets import repository, service
from service.datasets.schemas import DatasetRequest
from service.datasets.uploads import service as uploads
from service.db.models import Dataset
from service.db.rows import newest, owned
from service.wire.datasets import DatasetSummary, DatasetView

router = APIRouter(prefix="/v1/datasets", tags=["datasets"], route_class=Route)


OwnDataset = Annotated[Dataset, to_read("dataset_id", service.get)]
"""The data set of the path, if it belongs to the caller's tenant; otherwise 404. Needs a `ReadSession`."""
OwnDatasetToChange = Annotated[Dataset, to_change("dataset_id", service.get)]
"""Like `OwnDataset`, for callers who may submit. Needs a `WriteSession`."""


class _Checked(NamedTuple):
    """A checked request: its images exist and the caller may read them; with the room for an upload."""

    dataset: DatasetRequest
    free_bytes: int | None = None


async def _check(request: DatasetRequest, caller: Submitter, context: WithContext) -> _Checked:
    # Check before the transaction and in separate threads, as a file system may hang.
    threads, token, settings = context.path_threads, caller.token_id, context.settings
    if request.upload is not None:
        measure = partial(uploads.measure_room, request.upload, settings)
        return _Checked(request, await threads.run_for(token, measure))
    assert request.uri is not None, "checked by DatasetRequest"
    uri = request.uri
    await threads.run_for(token, partial(service.check_location, uri, caller.tenant, settings))
    await threads.run_for(token, partial(service.check_columns, uri, request.source, settings))
    return _Checked(request)


CheckedRequest = Annotated[_Checked, Depends(_check)]


@router.post("", status_code=201, responses=FULL)
def register_dataset(
    request: CheckedRequest,
    response: Response,
    caller: Submitter,
    context: WithContext,
    session: WriteSession,
) -> DatasetView:
    """Register images by path or URI, or for an upload. They are ingested in the background; tenants take turns."""

    def begin_upload(dataset: Dataset) -> None:
        if (upload := request.dataset.upload) is not None:
            if request.free_bytes is not None:
                uploads.check_room(session, upload, request.free_bytes)
            uploads.begin(dataset, upload, context.storage)

    if (upload := request.dataset.upload) is not None:
        uploads.check_quotas(session, caller, upload.size)
    dataset = service.register(session, caller, request.dataset, begin_upload)
    response.headers["Location"] = f"/v1/datasets/{dataset.id}"
    return DatasetView.model_validate(dataset)


@router.get("")
def list_datasets(
    caller: Reader,
    session: ReadSession,
    window: Annotated[Window, window("ds")],
    name: Annotated[str | None, Query(max_length=200, pattern=r"^[^\x00]*$")] = None,
) -> Page[DatasetSummary]:
    """List data sets, newest first, without what a data set's own page has of any size."""
    query = owned(Dataset, caller.tenant).options(defer(Dataset.source), defer(Dataset.report))
    if name is not None:
        query = query.where(Dataset.name == name)
    rows = newest(session, query, *window)
    skipped = repository.skipped(session, [row.id for row in rows])

    def summary(row: Dataset) -> DatasetSummary:
        found = DatasetSummary.model_validate(row)
        return found.model_copy(update={"num_skipped": skipped.get(row.id)})

    return page(rows, window.limit, summary)


@router.get("/{dataset_id}")
def show_dataset(dataset: OwnDataset) -> DatasetView:
    """Show a data set, with its facts and the report of its ingest."""
    return DatasetView.model_validate(dataset)


@router.delete("/{dataset_id}", status_code=204, response_class=Response)
def delete_dataset(dataset: OwnDatasetToChange, session: WriteSession) -> None:
    """Delete a data set and its upload, but not a registered folder; 409 while an unfinished job uses it."""
    service.delete(session, dataset)
