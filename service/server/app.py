"""The API as an ASGI application. Importing this loads neither torch nor Ray."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

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
from service.jobs.checkpoint_endpoints import files as artifact_files
from service.jobs.checkpoint_endpoints import router as job_checkpoints
from service.jobs.endpoints import router as jobs
from service.jobs.history_endpoints import heavy as heavy_history
from service.jobs.history_endpoints import logs
from service.jobs.history_endpoints import router as history
from service.jobs.preparation_endpoints import router as preparations
from service.jobs.preview_endpoints import files as preview_files
from service.jobs.preview_endpoints import router as previews
from service.login.endpoints import router as login
from service.login.provider import Provider
from service.observability.endpoints import router as probes
from service.observability.observer import Observer
from service.scheduling.decision_cache import DecisionCache
from service.settings import Settings
from service.storage.endpoints import router as storage
from service.tenants.endpoints import router as tenants
from service.tokens.endpoints import router as tokens
from service.usage.endpoints import router as usage
from service.users.endpoints import router as users
from service.worker_api.endpoints import REPORTS
from service.worker_api.endpoints import routers as workers

# All apps of a process share these routes: FastAPI takes 60 ms to build them, at the first requests.
_router = APIRouter()
for _part in (
    jobs,
    history,
    heavy_history,
    logs,
    job_checkpoints,
    artifact_files,
    datasets,
    uploads,
    previews,
    preview_files,
    preparations,
    dataset_versions,
    dataset_files,
    checkpoints,
    checkpoint_files,
    cluster,
    storage,
    catalog,
    login,
    tenants,
    users,
    tokens,
    audit,
    usage,
    *workers,
):
    _router.include_router(_part, responses=problems.PROBLEM_RESPONSES)
_router.include_router(probes)


def create_app(settings: Settings, database: Database | None = None) -> FastAPI:
    """Build the API over a migrated database.

    Args:
        settings: see `Settings`.
        database: shared with the caller, which closes it; without it, the app opens and closes its own.

    `app.state.context.closing.set()` ends the live streams, so that a server can shut down.
    """
    owned = database is None
    database = database or Database(settings.database_url)
    failures = settings.auth_failures_per_minute
    store = Storage(
        settings.artifacts_uri,
        presigned=settings.presigned_downloads,
        public_endpoint=settings.s3_public_endpoint,
    )
    decisions = DecisionCache(settings.fair_share_half_life, settings.cluster_limit)
    context = Context(settings, database, store, Failures(failures), decisions, Failures(failures))
    provider = _login_provider(settings)

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
        version=_version(),
        lifespan=lifespan,
        redirect_slashes=False,
        routes=_router.routes,
    )
    app.state.context = context
    app.state.login_provider = provider
    app.state.loop = None
    observer = app.state.observer = Observer(app.version, settings, database)
    app.add_middleware(BodyLimit, limit=settings.max_body_bytes, other_limit=body_limit)
    app.add_middleware(FailedAuthLimit, failures=Failures(failures))
    if settings.trusted_proxies:
        app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=settings.trusted_proxies)
    app.add_middleware(RequestLog, latency=observer.process.latency)
    problems.install(app)
    _document_models(app)
    return app


def _login_provider(settings: Settings) -> Provider | None:
    """Return the login provider of the settings, if there is one.

    Raises:
        ValueError: its extra is not installed.
    """
    if not settings.oidc_issuer:
        return None
    if find_spec("jwt") is None:
        raise ValueError('DASL_OIDC_ISSUER: needs the extra oidc: pip install "dasl[server,oidc]"')
    return Provider(settings)


def _document_models(app: FastAPI) -> None:
    def openapi() -> dict[str, object]:
        if app.openapi_schema is None:
            schema = get_openapi(
                title=app.title, version=app.version, summary=app.summary, routes=app.routes
            )
            schemas = schema.setdefault("components", {}).setdefault("schemas", {})
            for model in (problems.ProblemDocument, *REPORTS):
                document = model.model_json_schema(ref_template="#/components/schemas/{model}")
                schemas.update(
                    {
                        name: each
                        for name, each in document.pop("$defs", {}).items()
                        if name not in schemas
                    }
                )
                schemas[model.__name__] = document
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _version() -> str:
    try:
        return version("dasl")
    except PackageNotFoundError:  # Run from a source tree that is not installed.
        return "0"
