"""`/v1/jobs/{id}/events` and `/logs`: a job's history, stored or live."""

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from service.api.auth import Reader
from service.api.problems import field_problem, not_found
from service.api.sse import stream, wants_stream
from service.api.transaction import ReadSession, Route, StoreRoute, WithContext
from service.artifacts.attempt_log import AttemptLog
from service.events.views import event_view
from service.jobs import repository
from service.jobs.dependencies import OwnJob
from service.jobs.streams import EventStream, LogStream
from service.wire.jobs import EventPage

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=Route)
logs = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=StoreRoute)

_LARGEST = 2**31 - 1
Position = Annotated[int, Query(ge=0, le=_LARGEST)]
LastEventId = Annotated[str | None, Header(alias="Last-Event-ID", max_length=40)]
_SSE = {"text/event-stream": {"schema": {"type": "string"}}}


@router.get("/{job_id}/events", response_model=EventPage, responses={200: {"content": _SSE}})
def list_job_events(
    job: OwnJob,
    request: Request,
    caller: Reader,
    context: WithContext,
    session: ReadSession,
    last_event_id: LastEventId = None,
    after: Position = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> Response | EventPage:
    """List events in order; with `Accept: text/event-stream`, stream them until the job has ended."""
    if wants_stream(request):
        if last_event_id:
            after = _number(last_event_id, last_event_id, _LARGEST)
        return stream(context, caller, EventStream(context, job.id, after).poll)
    rows = repository.events(session, job.id, after, limit)
    data = [event_view(row) for row in rows[:limit]]
    return EventPage(data=data, has_more=len(rows) > limit, next=data[-1].seq if data else after)


@logs.get(
    "/{job_id}/logs",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}, **_SSE}}},
)
def show_log(
    job: OwnJob,
    request: Request,
    caller: Reader,
    context: WithContext,
    session: ReadSession,
    last_event_id: LastEventId = None,
    tail: Annotated[int | None, Query(ge=0, le=100_000)] = None,
    attempt: Annotated[int | None, Query(ge=1, le=_LARGEST)] = None,
) -> Callable[[], Response]:
    """Show the driver's log of an attempt (by default the newest), or its last `tail` lines.

    With `Accept: text/event-stream` the log is streamed until the job has ended, across restarts; the
    data of an event is one or more whole lines.
    """
    newest = job.attempt
    if attempt is not None and attempt > newest:
        raise not_found("attempt", str(attempt))
    number = attempt or newest
    job_id, position = job.id, None
    if wants_stream(request) and last_event_id:
        left, _, right = last_event_id.partition(":")
        number = _number(left, last_event_id, _LARGEST)
        position = _number(right, last_event_id, 2**53)

    def answer() -> Response:
        log = AttemptLog(context.storage, job_id, number)
        threads = context.store_threads
        if wants_stream(request):
            offset = position
            if offset is None:
                offset = 0 if tail is None else log.tail(tail)[1]
            poll = LogStream(context, job_id, number, offset).poll
            return stream(context, caller, poll, threads.run)
        text = log.text() if tail is None else log.tail(tail)[0]
        return StreamingResponse(threads.iterate(text), media_type="text/plain; charset=utf-8")

    return answer


def _number(text: str, event_id: str, largest: int) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > largest:
        raise field_problem(
            "Last-Event-ID", "is not the id of an event", event_id, "an `id` of this stream"
        )
    return int(text)
