"""`/v1/cluster` and `/v1/catalog`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from dasl_core.spec import BACKBONES, METHODS, JobSpec
from service.auth import Reader
from service.cluster import service
from service.cluster.schemas import ClusterView
from service.context import ReadSession, Route

router = APIRouter(prefix="/v1", tags=["cluster"], route_class=Route)


@router.get("/cluster")
def show_cluster(caller: Reader, session: ReadSession) -> ClusterView:
    """Nodes, CPUs and GPUs, used and free, and the queue by priority."""
    return service.view(session, caller.tenant)


@router.get("/catalog/methods")
def list_methods(_: Reader) -> dict[str, Any]:
    """Training methods with the JSON Schema of their settings, and that of a whole job."""
    methods = [
        {"name": name, "description": _summary(settings), "schema": settings.model_json_schema()}
        for name, settings in METHODS.items()
    ]
    return {"data": methods, "job_schema": JobSpec.model_json_schema()}


@router.get("/catalog/backbones")
def list_backbones(_: Reader) -> dict[str, Any]:
    """Networks that can be pretrained."""
    return {"data": [{"name": name, **info.model_dump()} for name, info in BACKBONES.items()]}


def _summary(settings: type) -> str:
    return (settings.__doc__ or "").strip().partition("\n")[0]
