"""`/v1/catalog`: the methods and backbones that a job may name."""

from typing import Any

from fastapi import APIRouter

from dasl_core.spec import BACKBONES, METHODS, JobSpec
from service.api.auth import Reader
from service.api.transaction import Route

router = APIRouter(prefix="/v1/catalog", tags=["cluster"], route_class=Route)


@router.get("/methods")
def list_methods(_: Reader) -> dict[str, Any]:
    """List the methods with the JSON Schemas of their settings, and the schema of a job."""
    methods = [
        {"name": name, "description": _summary(settings), "schema": settings.model_json_schema()}
        for name, settings in METHODS.items()
    ]
    return {"data": methods, "job_schema": JobSpec.model_json_schema()}


@router.get("/backbones")
def list_backbones(_: Reader) -> dict[str, Any]:
    """List the networks that can be pretrained."""
    # Shapes of weights are for checks of files.
    return {
        "data": [
            {"name": name, **info.model_dump(exclude={"weights"})}
            for name, info in BACKBONES.items()
        ]
    }


def _summary(settings: type) -> str:
    return (settings.__doc__ or "").strip().partition("\n")[0]
