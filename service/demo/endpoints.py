"""`/v1/demo`: the data set and the job of the demo."""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel

from service.api import audit_log
from service.api.auth import Submitter
from service.api.json_body import StrictRoute
from service.api.problems import FULL
from service.api.transaction import WithContext
from service.demo import service
from service.wire.datasets import DatasetView

router = APIRouter(prefix="/v1/demo", tags=["datasets"], route_class=StrictRoute)


class DemoView(BaseModel):
    """The data set of the demo, and the spec of its job, which can be submitted once the data set is ready."""

    dataset: DatasetView
    spec: dict[str, Any]


@router.post("", responses=FULL)
async def add_demo(request: Request, caller: Submitter, context: WithContext) -> DemoView:
    """Register the images of the demo, unless they are registered; return them with the spec of the demo's job.

    Repeat it until the data set is ready, then submit the spec.
    """
    on_change = partial(audit_log.record_change, request=request)
    add = partial(service.add_images, context, caller, on_change)
    dataset = await context.upload_threads.run_for(caller.token_id, add)
    return DemoView(dataset=DatasetView.model_validate(dataset), spec=service.demo_spec())
