"""`/worker/v1`: the door of attempts and ingest runs, each with a token of its own.

A word spoken for an attempt that is over or was replaced is answered with 409 `stale-attempt`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from service.api.auth import WorkerToken
from service.api.transaction import FleetingSession, Route, WithContext, WriteSession
from service.worker_api import service
from service.worker_api.schemas import (
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

router = APIRouter(prefix="/worker/v1", tags=["workers"], route_class=Route)
_ATTEMPT = "/jobs/{job_id}/attempts/{number}"


def _check_attempt(request: Request, token: WorkerToken, context: WithContext) -> None:
    # As they stand in the path: what is wrong with them is told together with all that is wrong with the
    # body, and nobody is told of that who has no token.
    job_id, number = request.path_params["job_id"], request.path_params["number"]
    with context.database.look() as session:
        service.check_attempt_token(session, token, job_id, number)


def _check_ingest(request: Request, token: WorkerToken, context: WithContext) -> None:
    with context.database.look() as session:
        service.check_ingest_token(session, token, request.path_params["dataset_id"])


async def _door(
    job_id: str,
    number: int,
    session: WriteSession,
    _: Annotated[None, Depends(_check_attempt)],
) -> Callable[[], service.Door]:
    # Opened by the endpoint and not here: between a dependency and its endpoint a request waits
    # for a thread, and must not hold a lock meanwhile.
    return partial(service.Door, session, job_id, number)


async def _fleeting_door(
    job_id: str,
    number: int,
    session: FleetingSession,
    _: Annotated[None, Depends(_check_attempt)],
) -> Callable[[], service.Door]:
    return partial(service.Door, session, job_id, number)


OpenDoor = Annotated[Callable[[], service.Door], Depends(_door)]
# Heartbeats come again, and an attempt's points are worth something with its checkpoints, whose
# registration takes all that came before with it to the disk.
OpenFleetingDoor = Annotated[Callable[[], service.Door], Depends(_fleeting_door)]


@router.post(f"{_ATTEMPT}/start")
def start(open_door: OpenDoor, context: WithContext) -> AttemptStart:
    """The attempt runs; may be repeated."""
    return open_door().start(context.storage, context.settings)


@router.post(f"{_ATTEMPT}/damaged-checkpoint")
def damaged_checkpoint(
    word: DamageReport, open_door: OpenDoor, context: WithContext
) -> AttemptStart:
    """The checkpoint to go on from is damaged; the answer names another one, or none."""
    return open_door().damaged(word, context.storage, context.settings)


@router.post(f"{_ATTEMPT}/heartbeat")
def heartbeat(word: Heartbeat, open_door: OpenFleetingDoor) -> HeartbeatAnswer:
    """The attempt lives; the answer says what is desired of it."""
    return HeartbeatAnswer.model_validate({"desired": open_door().heartbeat(word.progress)})


@router.post(f"{_ATTEMPT}/metrics", status_code=204, response_class=Response)
def metrics(word: MetricBatch, open_door: OpenFleetingDoor) -> None:
    """Points of the training's series."""
    open_door().metrics(word)


@router.post(f"{_ATTEMPT}/evaluations", status_code=204, response_class=Response)
def evaluations(word: EvaluationReport, open_door: OpenDoor) -> None:
    """Figures on held-out images."""
    open_door().evaluation(word)


@router.post(f"{_ATTEMPT}/events", status_code=204, response_class=Response)
def events(word: EventReport, open_door: OpenDoor) -> None:
    """Something worth knowing."""
    open_door().event(word)


@router.post(f"{_ATTEMPT}/checkpoints", status_code=201)
def checkpoints(
    word: CheckpointReport, open_door: OpenDoor, context: WithContext
) -> CheckpointAnswer:
    """A checkpoint that is written."""
    return CheckpointAnswer(id=open_door().checkpoint(word, context.storage))


@router.post(f"{_ATTEMPT}/artifacts", status_code=204, response_class=Response)
def artifacts(word: ArtifactReport, open_door: OpenDoor, context: WithContext) -> None:
    """A file that is written."""
    open_door().artifact(word, context.storage)


@router.post(
    f"{_ATTEMPT}/finish",
    status_code=204,
    response_class=Response,
    dependencies=[Depends(_check_attempt)],
)
def finish(job_id: str, number: int, word: FinishReport, session: WriteSession) -> None:
    """How the attempt ended."""
    service.finish(session, job_id, number, word)


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
    word: IngestReport,
    token: WorkerToken,
    session: WriteSession,
    context: WithContext,
) -> None:
    """How an ingest run ended."""
    service.finish_ingest(session, token, dataset_id, word, context.storage)
