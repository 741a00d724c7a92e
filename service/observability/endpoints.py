"""`/livez`, `/readyz` and `/metrics`."""

import hmac

from fastapi import APIRouter, Request, Response
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel

from service.api.auth import bearer_token, unauthenticated
from service.api.problems import PROBLEM_RESPONSES, UNAVAILABLE, Problem
from service.api.transaction import WithContext
from service.observability.observer import WithObserver
from service.states import READY

router = APIRouter(tags=["probes"])


class Liveness(BaseModel):
    """State and version of the process."""

    status: str
    version: str


class Readiness(BaseModel):
    """Whether jobs can be submitted and run."""

    ready: bool
    checks: dict[str, str]


@router.get("/livez")
async def live(request: Request) -> Liveness:
    """Report that the process answers; no dependency is checked."""
    return Liveness(status="ok", version=request.app.version)


@router.get("/readyz", responses=UNAVAILABLE)
async def ready(observer: WithObserver) -> Readiness:
    """Check database, dispatcher, Ray and storage; 503 names those that are not ready."""
    checks = await observer.checks()
    failing = {name: state for name, state in checks.items() if state not in READY}
    if failing:
        detail = "; ".join(f"{name}: {state}" for name, state in failing.items())
        raise Problem(503, "not-ready", detail, extra={"ready": False, "checks": checks})
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
    """Metrics for Prometheus, of all tenants and without ids; names of tenants only with a token.

    Requires the token of `DASL_METRICS_TOKEN` if one is set. It is not a token in the database, as
    metrics must work without the database.
    """
    required = context.settings.metrics_token
    if required is not None:
        token = bearer_token(request).encode()
        if not hmac.compare_digest(token, required.get_secret_value().encode()):
            raise unauthenticated("This needs the token set in DASL_METRICS_TOKEN")
    return Response(await observer.metrics(), media_type=CONTENT_TYPE_PLAIN_0_0_4)
