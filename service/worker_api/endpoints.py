"""`/worker/v1`: API for runs, each with its own token.

A request from a finished or superseded run gets 409 `stale-attempt`.
"""

from functools import partial
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Body, Depends, Request, Response
from fastapi.routing import APIRoute

from service.api.auth import WorkerToken
from service.api.json_body import StrictRoute
from service.api.request_log import LOGGED_IDS
from service.api.transaction import (
    Context,
    RelaxedWriteSession,
    WithContext,
    WorkerRoute,
    WriteSession,
)
from service.db.models import Attempt, SearchRun
from service.protocol import (
    ArtifactReport,
    AttemptStart,
    CheckpointAnswer,
    CheckpointReport,
    DamageReport,
    EvaluationReport,
    EventReport,
    Heartbeat,
    HeartbeatAnswer,
    MetricBatch,
    Queries,
    QueryAnswers,
)
from service.worker_api import service
from service.worker_api.searches import SearchPoll
from service.worker_api.service import RunKey, RunRequest, RunStart

# How long a search's request for questions waits for one, and how often it polls.
_LONG_POLL_SECONDS, _POLL_SECONDS = 5.0, 0.03


# Declares the path parameter in the OpenAPI document. `_authenticate` reads the raw value, because a request
# without a valid token must get 401 instead of a validation error.
async def _run_path(run_id: str) -> None: ...


def _router(route_class: type[APIRoute]) -> APIRouter:
    return APIRouter(
        prefix="/worker/v1/runs/{run_id}",
        tags=["workers"],
        route_class=route_class,
        dependencies=[Depends(_run_path)],
    )


runs = _router(WorkerRoute)
polls = _router(StrictRoute)
routers = (runs, polls)


async def _authenticate(request: Request, token: WorkerToken, context: WithContext) -> RunKey:
    check = partial(_check_token, context, token, request.path_params["run_id"])
    run = await context.worker_threads.run(check)
    logged = {service.KINDS[run.kind].owner: run.owner}
    if run.kind is Attempt:
        logged["number"] = str(run.number)
    request.scope[LOGGED_IDS] = logged
    return run


def _check_token(context: Context, token: str, run_id: str) -> RunKey:
    with context.database.autocommit() as session:
        return service.check_run_token(session, token, run_id)


AuthenticatedRun = Annotated[RunKey, Depends(_authenticate)]


# The endpoint locks the run, because a request waits for a thread between a dependency and its endpoint and must not
# hold a lock.
async def _request(run: AuthenticatedRun, token: WorkerToken, session: WriteSession) -> RunRequest:
    return RunRequest(session, run, token)


async def _relaxed_request(
    run: AuthenticatedRun, token: WorkerToken, session: RelaxedWriteSession
) -> RunRequest:
    return RunRequest(session, run, token)


WriteRequest = Annotated[RunRequest, Depends(_request)]
# For requests that a power failure may undo: heartbeats repeat, and metrics only count up to the last checkpoint, whose
# registration makes all earlier transactions durable.
RelaxedWriteRequest = Annotated[RunRequest, Depends(_relaxed_request)]


@runs.post("/start")
def start_run(request: WriteRequest, context: WithContext) -> RunStart:
    """Mark the run as running and return its settings, depending on its kind. Idempotent."""
    return request.open().start(context.storage, context.settings)


@runs.post("/damaged-checkpoint")
def damaged_checkpoint(
    report: DamageReport, request: WriteRequest, context: WithContext
) -> AttemptStart:
    """Record that the resume checkpoint is damaged; return the settings with another one or without one."""
    return request.attempt().damaged(report, context.storage, context.settings)


@runs.post("/heartbeat")
def heartbeat(report: Heartbeat, request: RelaxedWriteRequest) -> HeartbeatAnswer:
    """Record a heartbeat and return the desired state of the run."""
    return HeartbeatAnswer.model_validate(
        {"desired": request.open().heartbeat({**report.progress})}
    )


@runs.post("/metrics", status_code=204, response_class=Response)
def metrics(report: MetricBatch, request: RelaxedWriteRequest) -> None:
    """Store metric points of the job."""
    request.attempt().metrics(report)


@runs.post("/evaluations", status_code=204, response_class=Response)
def evaluations(report: EvaluationReport, request: WriteRequest) -> None:
    """Store the metrics of an evaluation."""
    request.attempt().evaluation(report)


@runs.post("/events", status_code=204, response_class=Response)
def events(report: EventReport, request: WriteRequest) -> None:
    """Add an event to the job's history."""
    request.attempt().event(report)


@runs.post("/checkpoints", status_code=201)
def checkpoints(
    report: CheckpointReport, request: WriteRequest, context: WithContext
) -> CheckpointAnswer:
    """Register a written checkpoint."""
    return CheckpointAnswer(id=request.attempt().checkpoint(report, context.storage))


@runs.post("/artifacts", status_code=204, response_class=Response)
def artifacts(report: ArtifactReport, request: WriteRequest, context: WithContext) -> None:
    """Register a written file, such as a plot."""
    request.attempt().artifact(report, context.storage)


REPORTS = tuple(kind.report for kind in service.KINDS.values())
"""The bodies of `finish`, by kind of run, for the OpenAPI document."""
_BODIES = [{"$ref": f"#/components/schemas/{report.__name__}"} for report in REPORTS]


@runs.post(
    "/finish",
    status_code=204,
    response_class=Response,
    openapi_extra={
        "requestBody": {"content": {"application/json": {"schema": {"anyOf": _BODIES}}}}
    },
)
def finish_run(
    report: Annotated[dict[str, Any], Body()], request: WriteRequest, context: WithContext
) -> None:
    """Record how the run ended. The kind of run determines the report."""
    request.finish(report, context.storage)


@polls.post("/queries")
async def next_queries(
    report: QueryAnswers, run: AuthenticatedRun, token: WorkerToken, context: WithContext
) -> Queries:
    """Store the answers of a search, and return the next questions; empty after some seconds without any."""
    service.check_kind(run, SearchRun)
    threads = context.worker_threads
    poll = SearchPoll(context.database, run.owner, run.number, token)
    if report.answers:
        await threads.run(partial(poll.answer, report))
    until = anyio.current_time() + _LONG_POLL_SECONDS
    # Between two polls, a request holds neither a thread nor a connection.
    while (queries := await threads.run(poll.next)) is None:
        if anyio.current_time() >= until or context.closing.is_set():
            return Queries(queries=[])
        await anyio.sleep(_POLL_SECONDS)
    return queries
