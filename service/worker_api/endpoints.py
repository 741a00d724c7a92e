"""`/worker/v1`: the door of attempts and ingest runs, each with a token of its own.

A report spoken for an attempt that is over or was replaced is answered with 409 `stale-attempt`.
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
    # As they stand in the path: what is wrong with them is told together with all that is wrong with the
    # body, and nobody is told of that who has no token.
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
    # Opened by the endpoint and not here: between a dependency and its endpoint a request waits
    # for a thread, and must not hold a lock meanwhile.
    return partial(service.AttemptSession, session, job_id, number)


async def _relaxed_attempt_session(
    job_id: str,
    number: int,
    session: RelaxedWriteSession,
    _: Annotated[None, Depends(_check_attempt)],
) -> Callable[[], service.AttemptSession]:
    return partial(service.AttemptSession, session, job_id, number)


LockAttempt = Annotated[Callable[[], service.AttemptSession], Depends(_attempt_session)]
# Heartbeats come again, and an attempt's points are worth something with its checkpoints, whose
# registration takes all that came before with it to the disk.
LockAttemptRelaxed = Annotated[
    Callable[[], service.AttemptSession], Depends(_relaxed_attempt_session)
]


@router.post(f"{_ATTEMPT}/start")
def start(lock_attempt: LockAttempt, context: WithContext) -> AttemptStart:
    """The attempt runs; may be repeated."""
    return lock_attempt().start(context.storage, context.settings)


@router.post(f"{_ATTEMPT}/damaged-checkpoint")
def damaged_checkpoint(
    report: DamageReport, lock_attempt: LockAttempt, context: WithContext
) -> AttemptStart:
    """The checkpoint to go on from is damaged; the answer names another one, or none."""
    return lock_attempt().damaged(report, context.storage, context.settings)


@router.post(f"{_ATTEMPT}/heartbeat")
def heartbeat(report: Heartbeat, lock_attempt: LockAttemptRelaxed) -> HeartbeatAnswer:
    """The attempt lives; the answer says what is desired of it."""
    return HeartbeatAnswer.model_validate({"desired": lock_attempt().heartbeat(report.progress)})


@router.post(f"{_ATTEMPT}/metrics", status_code=204, response_class=Response)
def metrics(report: MetricBatch, lock_attempt: LockAttemptRelaxed) -> None:
    """Points of the training's series."""
    lock_attempt().metrics(report)


@router.post(f"{_ATTEMPT}/evaluations", status_code=204, response_class=Response)
def evaluations(report: EvaluationReport, lock_attempt: LockAttempt) -> None:
    """Figures on held-out images."""
    lock_attempt().evaluation(report)


@router.post(f"{_ATTEMPT}/events", status_code=204, response_class=Response)
def events(report: EventReport, lock_attempt: LockAttempt) -> None:
    """Something worth knowing."""
    lock_attempt().event(report)


@router.post(f"{_ATTEMPT}/checkpoints", status_code=201)
def checkpoints(
    report: CheckpointReport, lock_attempt: LockAttempt, context: WithContext
) -> CheckpointAnswer:
    """A checkpoint that is written."""
    return CheckpointAnswer(id=lock_attempt().checkpoint(report, context.storage))


@router.post(f"{_ATTEMPT}/artifacts", status_code=204, response_class=Response)
def artifacts(report: ArtifactReport, lock_attempt: LockAttempt, context: WithContext) -> None:
    """A file that is written."""
    lock_attempt().artifact(report, context.storage)


@router.post(
    f"{_ATTEMPT}/finish",
    status_code=204,
    response_class=Response,
    dependencies=[Depends(_check_attempt)],
)
def finish(job_id: str, number: int, report: FinishReport, session: WriteSession) -> None:
    """How the attempt ended."""
    service.finish(session, job_id, number, report)


@router.post("/datasets/{dataset_id}/start")
def start_ingest(
    dataset_id: str, token: WorkerToken, session: WriteSession, context: WithContext
) -> IngestStart:
    """An ingest run begins; may be repeated."""
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
    """How an ingest run ended."""
    service.finish_ingest(session, token, dataset_id, report, context.storage)
