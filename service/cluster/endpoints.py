"""`/v1/cluster`, `/v1/catalog`, and the probes `/livez` and `/readyz`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from sqlalchemy.exc import SQLAlchemyError

from dasl_core.spec import BACKBONES, METHODS, JobSpec
from service.auth import Reader
from service.cluster import service
from service.cluster.schemas import ClusterView, Readiness
from service.context import ReadSession, WithContext
from service.problems import UNAVAILABLE, Problem

router = APIRouter(prefix="/v1", tags=["cluster"])
probes = APIRouter(tags=["probes"])


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


@probes.get("/livez")
async def live() -> dict[str, str]:
    """The process answers; nothing else is asked."""
    return {"status": "ok"}


@probes.get("/readyz", responses=UNAVAILABLE)
def ready(context: WithContext) -> Readiness:
    """Database, dispatcher and Ray are there; 503 names what is not."""
    try:
        with context.database.read() as session:
            checks = service.readiness(session, context.settings)
    except SQLAlchemyError as error:
        checks = {"database": type(error).__name__}
    if any(state != "ok" for state in checks.values()):
        wrong = "; ".join(f"{name}: {state}" for name, state in checks.items() if state != "ok")
        raise Problem(503, "not-ready", wrong, extra={"ready": False, "checks": checks})
    return Readiness(ready=True, checks=checks)


def _summary(settings: type) -> str:
    return (settings.__doc__ or "").strip().partition("\n")[0]
