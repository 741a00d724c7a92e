"""The API as an ASGI application. Importing this module loads neither torch nor Ray."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.types import Scope
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from dasl_core.installed import installed_version
from service.api import problems
from service.api.auth_rate_limit import FailedAuthLimit, Failures
from service.api.json_body import BodyLimit
from service.api.request_log import RequestLog
from service.api.threads import size_general_pool
from service.api.transaction import Context
from service.artifacts.storage import Storage
from service.audit.endpoints import router as audit
from service.catalog.endpoints import router as catalog
from service.checkpoints.endpoints import files as checkpoint_files
from service.checkpoints.endpoints import router as checkpoints
from service.cluster.endpoints import router as cluster
from service.datasets.endpoints import router as datasets
from service.datasets.uploads.endpoints import body_limit
from service.datasets.uploads.endpoints import router as uploads
from service.datasets.versions.endpoints import files as dataset_files
from service.datasets.versions.endpoints import router as dataset_versions
from service.db.session import Database
from service.demo.endpoints import router as demo
from service.events.endpoints import router as events
from service.events.feed import Feed
from service.experiments.endpoints import heavy as experiment_results
from service.experiments.endpoints import router as experiments
from service.jobs.checkpoint_endpoints import files as artifact_files
from service.jobs.checkpoint_endpoints import router as job_checkpoints
from service.jobs.endpoints import lists as job_lists
from service.jobs.endpoints import router as jobs
from service.jobs.history_endpoints import logs
from service.jobs.history_endpoints import router as history
from service.jobs.metrics_endpoints import router as jobs_metrics
from service.jobs.preparation_endpoints import router as preparations
from service.jobs.preview_endpoints import files as preview_files
from service.jobs.preview_endpoints import router as previews
from service.login.endpoints import router as login
from service.login.provider import Provider
from service.login.service import id_token_check
from service.model_runs.endpoints import files as model_run_files
from service.model_runs.endpoints import router as model_runs
from service.model_runs.neighbor_endpoints import body_limit as image_limit
from service.model_runs.neighbor_endpoints import router as neighbors
from service.observability.endpoints import router as probes
from service.observability.observer import Observer
from service.reference.endpoints import router as reference
from service.server.openapi import document
from service.sessions.endpoints import router as sessions
from service.settings import Settings
from service.storage.endpoints import router as storage
from service.tenants.endpoints import router as tenants
from service.tokens.endpoints import router as tokens
from service.usage.endpoints import router as usage
from service.users.endpoints import router as users
from service.web.endpoints import router as web
from service.webhooks.endpoints import router as webhooks
from service.worker_api.endpoints import routers as workers


def _operation_id(route: APIRoute) -> str:
    """Return the name of a route's function, which code generators use for their client's functions."""
    return f"worker_{route.name}" if route.path.startswith("/worker/") else route.name


# Shared by all apps of a process, because FastAPI takes 60 ms to build them at the first requests.
_router = APIRouter(generate_unique_id_function=_operation_id)
for _part in (
    # First, because most requests are heartbeats, and a request is compared with one part after the other.
    *workers,
    job_lists,
    jobs,
    history,
    jobs_metrics,
    logs,
    events,
    job_checkpoints,
    artifact_files,
    datasets,
    uploads,
    previews,
    preview_files,
    preparations,
    dataset_versions,
    dataset_files,
    demo,
    checkpoints,
    checkpoint_files,
    experiments,
    experiment_results,
    model_runs,
    model_run_files,
    neighbors,
    cluster,
    storage,
    catalog,
    login,
    sessions,
    tenants,
    users,
    tokens,
    audit,
    usage,
    webhooks,
):
    _router.include_router(_part, responses=problems.PROBLEM_RESPONSES)
_router.include_router(probes)
_router.include_router(web)
_router.include_router(reference)


def create_app(settings: Settings, database: Database | None = None) -> FastAPI:
    """Build the API over a migrated database.

    Args:
        settings: see `Settings`.
        database: database that the caller closes; without it, the app opens and closes one.

    `app.state.context.closing.set()` ends the live streams, so that a server can shut down.

    Raises:
        ValueError: the settings name a login provider, and its extra is not installed.
    """
    owned = database is None
    database = database or Database(settings.database_url)
    failures = settings.auth_failures_per_minute
    store = Storage(
        settings.artifacts_uri,
        presigned=settings.presigned_downloads,
        public_endpoint=settings.s3_public_endpoint,
    )
    context = Context(settings, database, store, Failures(failures), Failures(failures))
    provider = None
    if settings.oidc_issuer:
        id_token_check()
        provider = Provider(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.loop = asyncio.get_running_loop()
        size_general_pool()
        yield
        context.closing.set()
        if provider is not None:
            provider.close()
        if owned:
            database.dispose()

    app = FastAPI(
        title="DASL",
        summary="Self-supervised pretraining as a service",
        version=installed_version("dasl") or "0",
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        routes=_router.routes,
    )
    app.state.context = context
    app.state.login_provider = provider
    app.state.event_feed = Feed(database, settings.stream_poll_seconds)
    app.state.loop = None
    observer = app.state.observer = Observer(app.version, settings, database)
    app.add_middleware(BodyLimit, limit=settings.max_body_bytes, other_limit=_body_limit)
    app.add_middleware(FailedAuthLimit, failures=Failures(failures))
    if settings.trusted_proxies:
        app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=settings.trusted_proxies)
    app.add_middleware(RequestLog, latency=observer.process.latency)
    problems.install(app)
    app.openapi = partial(document, app)  # type: ignore[method-assign]
    return app


def _body_limit(scope: Scope) -> int | None:
    return body_limit(scope) or image_limit(scope)
