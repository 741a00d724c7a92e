"""`/v1/preparations` and `/v1/datasets/{id}/preparations`: decode a data set in advance."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Response

from service.api.auth import Submitter
from service.api.own import to_change, to_read
from service.api.pagination import Page, Window, page, window
from service.api.transaction import ReadSession, Route, WithContext, WriteSession
from service.datasets.endpoints import OwnDataset
from service.db.models import Preparation
from service.jobs import preparations
from service.jobs.checked_specs import check_spec
from service.jobs.path_checks import CheckedSpec
from service.jobs.previews import build_spec
from service.preparations.schemas import PreparationRequest
from service.tasks import service as tasks
from service.tasks.repository import preparations as kind
from service.wire.preparations import PreparationView

router = APIRouter(prefix="/v1", tags=["preparations"], route_class=Route)


async def _to_prepare(
    dataset_id: str, request: PreparationRequest, caller: Submitter, context: WithContext
) -> CheckedSpec:
    return await check_spec(context, caller, build_spec(dataset_id, request.spec))


CheckedRequest = Annotated[CheckedSpec, Depends(_to_prepare)]
_find = partial(tasks.get, kind)
OwnPreparation = Annotated[Preparation, to_read("preparation_id", _find)]
OwnPreparationToChange = Annotated[Preparation, to_change("preparation_id", _find)]


@router.post(
    "/datasets/{dataset_id}/preparations",
    status_code=201,
    responses={200: {"model": PreparationView, "description": "An equal preparation exists"}},
)
def request_preparation(
    checked: CheckedRequest,
    response: Response,
    caller: Submitter,
    context: WithContext,
    session: WriteSession,
) -> PreparationView:
    """Decode the newest version of a data set for trainings by a spec, so that their jobs start immediately.

    The images are decoded in the background; tenants take turns. If an equal preparation is queued or running, it is
    returned with status 200.
    """
    limit = context.settings.cluster_limit
    preparation, is_new = preparations.submit(session, caller, checked, limit)
    if not is_new:
        response.status_code = 200
    response.headers["Location"] = f"/v1/preparations/{preparation.id}"
    return PreparationView.model_validate(preparation)


@router.get("/datasets/{dataset_id}/preparations")
def list_preparations(
    dataset: OwnDataset, session: ReadSession, window: Annotated[Window, window("prep")]
) -> Page[PreparationView]:
    """List a data set's preparations, newest first."""
    rows = kind.newest(session, dataset.id, *window)
    return page(rows, window.limit, PreparationView.model_validate)


@router.get("/preparations/{preparation_id}")
def show_preparation(preparation: OwnPreparation) -> PreparationView:
    """Show a preparation, with its progress while it runs."""
    return PreparationView.model_validate(preparation)


@router.delete("/preparations/{preparation_id}", status_code=204, response_class=Response)
def delete_preparation(preparation: OwnPreparationToChange, session: WriteSession) -> None:
    """Delete a preparation, and stop it if it runs. Decoded images stay in the cache."""
    tasks.delete(session, kind, preparation)
