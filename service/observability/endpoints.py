"""The probes `/livez` and `/readyz`, and `/metrics`."""

from __future__ import annotations

import hmac

from fastapi import APIRouter, Request, Response
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel

from service.api.auth import bearer_token, unauthenticated
from service.api.problems import PROBLEM_RESPONSES, UNAVAILABLE, Problem
from service.api.transaction import WithContext
from service.observability.observer import WithObserver

router = APIRouter(tags=["probes"])


class Liveness(BaseModel):
    """The process, and its version."""

    status: str
    version: str


class Readiness(BaseModel):
    """Whether work will be taken and done."""

    ready: bool
    checks: dict[str, str]


@router.get("/livez")
async def live(request: Request) -> Liveness:
    """The process answers; nothing else is asked."""
    return Liveness(status="ok", version=request.app.version)


@router.get("/readyz", responses=UNAVAILABLE)
async def ready(observer: WithObserver) -> Readiness:
    """Database, dispatcher and Ray are there; 503 names what is not."""
    checks = await observer.checks()
    if any(state != "ok" for state in checks.values()):
        wrong = "; ".join(f"{name}: {state}" for name, state in checks.items() if state != "ok")
        raise Problem(503, "not-ready", wrong, extra={"ready": False, "checks": checks})
    return Readiness(ready=True, checks=checks)


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
        "4XX": PROBLEM_RESPONSES["4XX"],
    },
)
async def metrics(request: Request, context: WithContext, observer: WithObserver) -> Response:
    """Figures for Prometheus, of all tenants and without any name or id.

    Needs the token of `DASL_METRICS_TOKEN` where one is set: not one of the database, for the
    metrics must be there when the database is not.
    """
    wanted = context.settings.metrics_token
    if wanted is not None:
        token = bearer_token(request).encode()
        if not hmac.compare_digest(token, wanted.get_secret_value().encode()):
            raise unauthenticated("This needs the token that DASL_METRICS_TOKEN says")
    return Response(await observer.metrics(), media_type=CONTENT_TYPE_PLAIN_0_0_4)
