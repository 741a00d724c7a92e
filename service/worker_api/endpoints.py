"""`/worker/v1`: API for attempts and ingest runs, each with its own token.

A request from a finished or superseded attempt gets 409 `stale-attempt`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from service.api.auth import WorkerToken
from service.api.transaction import RelaxedWriteSession, Route, WithContext, WriteSession
from service.protocol import (
    ArtifactReport,
    AttemptStart,
    CheckpointAnswer,
    CheckpointReport,
    DamageReport,
    EvaluationReport,
    EventReport,
    FinishReport,
    Heartbeat,
    HeartbeatAnswer,
    IngestReport,
    IngestStart,
    MetricBatch,
)
from service.worker_api import service

router = APIRouter(prefix="/worker/v1", tags=["workers"], route_class=Route)
_ATTEMPT = "/jobs/{job_id}/attempts/{number}"


def _check_attempt(request: Request, token: WorkerToken, context: WithContext) -> None:
    # Raw path values: their validation errors are reported together with those of the body, and only
    # to a request with a valid token.
    job_id, number = request.path_params["job_id"], request.path_params["number"]
    with context.database.autocommit() as session:
        service.check_attempt_token(session, token, job_id, number)


def _check_ingest(request: Request, token: WorkerToken, context: WithContext) -> None:
    with context.database.autocommit() as session:
        service.check_ingest_token(session, token, request.path_params["dataset_id"])


async def _attempt_session(
    job_id: str,
    number: int,
    session: WriteSession,
    _: Annotated[None, Depends(_check_attempt)],
) -> Callable[[], service.AttemptSession]:
    # The endpoint opens it: between a dependency and its endpoint a request waits for a thread, and
    # must not hold a lock meanwhile.
    return partial(service.AttemptSession, session, job_id, number)


async def _relaxed_attempt_session(
    job_id: str,
    number: int,
    session: RelaxedWriteSession,
    _: Annotated[None, Depends(_check_attempt)],
) -> Callable[[], service.AttemptSession]:
    return partial(service.AttemptSession, session, job_id, number)


LockAttempt = Annotated[Callable[[], service.AttemptSession], Depends(_attempt_session)]
# Heartbeats repeat, and metrics matter only up to the last checkpoint, whose registration also makes
# all earlier transactions durable.
LockAttemptRelaxed = Annotated[
    Callable[[], service.AttemptSession], Depends(_relaxed_attempt_session)
]


@router.post(f"{_ATTEMPT}/start")
def start(lock_attempt: LockAttempt, context: WithContext) -> AttemptStart:
    """Mark the attempt as running and return all that it needs. Idempotent."""
    return lock_attempt().start(context.storage, context.settings)


@router.post(f"{_ATTEMPT}/damaged-checkpoint")
def damaged_checkpoint(
    report: DamageReport, lock_attempt: LockAttempt, context: WithContext
) -> AttemptStart:
    """Record that the resume checkpoint is damaged; the answer names another one, or none."""
    return lock_attempt().damaged(report, context.storage, context.settings)


@router.post(f"{_ATTEMPT}/heartbeat")
def heartbeat(report: Heartbeat, lock_attempt: LockAttemptRelaxed) -> HeartbeatAnswer:
    """Record a heartbeat; the answer says what is desired of the job."""
    return HeartbeatAnswer.model_validate({"desired": lock_attempt().heartbeat(report.progress)})


@router.post(f"{_ATTEMPT}/metrics", status_code=204, response_class=Response)
def metrics(report: MetricBatch, lock_attempt: LockAttemptRelaxed) -> None:
    """Store points of the job's metric series."""
    lock_attempt().metrics(report)


@router.post(f"{_ATTEMPT}/evaluations", status_code=204, response_class=Response)
def evaluations(report: EvaluationReport, lock_attempt: LockAttempt) -> None:
    """Store metrics on held-out images."""
    lock_attempt().evaluation(report)


@router.post(f"{_ATTEMPT}/events", status_code=204, response_class=Response)
def events(report: EventReport, lock_attempt: LockAttempt) -> None:
    """Add an event to the job's history."""
    lock_attempt().event(report)


@router.post(f"{_ATTEMPT}/checkpoints", status_code=201)
def checkpoints(
    report: CheckpointReport, lock_attempt: LockAttempt, context: WithContext
) -> CheckpointAnswer:
    """Register a written checkpoint."""
    return CheckpointAnswer(id=lock_attempt().checkpoint(report, context.storage))


@router.post(f"{_ATTEMPT}/artifacts", status_code=204, response_class=Response)
def artifacts(report: ArtifactReport, lock_attempt: LockAttempt, context: WithContext) -> None:
    """Register a written file."""
    lock_attempt().artifact(report, context.storage)


@router.post(
    f"{_ATTEMPT}/finish",
    status_code=204,
    response_class=Response,
    dependencies=[Depends(_check_attempt)],
)
def finish(job_id: str, number: int, report: FinishReport, session: WriteSession) -> None:
    """Record how the attempt ended."""
    service.finish(session, job_id, number, report)


@router.post("/datasets/{dataset_id}/start")
def start_ingest(
    dataset_id: str, token: WorkerToken, session: WriteSession, context: WithContext
) -> IngestStart:
    """Mark an ingest run as running and return all that it needs. Idempotent."""
    return service.start_ingest(session, token, dataset_id, context.storage, context.settings)


@router.post(
    "/datasets/{dataset_id}/finish",
    status_code=204,
    response_class=Response,
    dependencies=[Depends(_check_ingest)],
)
def finish_ingest(
    dataset_id: str,
    report: IngestReport,
    token: WorkerToken,
    session: WriteSession,
    context: WithContext,
) -> None:
    """Record how an ingest run ended."""
    service.finish_ingest(session, token, dataset_id, report, context.storage)
