"""`/v1/events`: the events of all jobs of the tenant, as a list or live."""

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response

from service.api.auth import Reader
from service.api.pagination import Limit, Page, page
from service.api.parameters import JobId
from service.api.problems import field_problem
from service.api.sse import stream, wants_stream
from service.api.transaction import ReadSession, Route, WithContext
from service.events import repository
from service.events.feed import Feed, TenantStream, assign_before_list
from service.events.repository import EventFilter
from service.events.views import event_entry
from service.wire.events import EventEntry, Level

router = APIRouter(prefix="/v1/events", tags=["events"], route_class=Route)

_LARGEST = 2**63 - 1
_SSE = {"text/event-stream": {"schema": {"type": "string"}}}


async def _feed(request: Request) -> Feed:
    feed = request.app.state.event_feed
    assert isinstance(feed, Feed)
    return feed


Cursor = Annotated[str | None, Query(description="`next` of the previous page.", max_length=40)]
Type = Annotated[str, Query(max_length=50, pattern=r"^[^\x00]+$")]


@router.get("", response_model=Page[EventEntry], responses={200: {"content": _SSE}})
def list_events(
    request: Request,
    caller: Reader,
    context: WithContext,
    session: ReadSession,
    feed: Annotated[Feed, Depends(_feed)],
    job: Annotated[list[JobId] | None, Query(max_length=50, description="One or more.")] = None,
    type: Annotated[list[Type] | None, Query(max_length=50, description="One or more.")] = None,
    level: Annotated[list[Level] | None, Query(max_length=3, description="One or more.")] = None,
    after: Cursor = None,
    limit: Limit = 50,
    last_event_id: Annotated[
        str | None, Query(max_length=40, description="Of a live stream: the `id` to start after.")
    ] = None,
    last_event_header: Annotated[str | None, Header(alias="Last-Event-ID", max_length=40)] = None,
) -> Response | Page[EventEntry]:
    """List events, newest first; with `Accept: text/event-stream`, stream new ones as they happen."""
    filter = EventFilter(caller.tenant, tuple(job or ()), tuple(type or ()), tuple(level or ()))
    if wants_stream(request):
        # A browser that reconnects repeats the address and adds the header.
        last = repository.last_position(session)
        position = last
        if last_event_header:
            position = _number("Last-Event-ID", last_event_header)
        elif last_event_id:
            position = _number("last_event_id", last_event_id)
        # A greater position comes from a database that was replaced by a backup.
        return stream(context, caller, TenantStream(feed, filter, min(position, last)).poll)
    assign_before_list(feed)
    before = None if after is None else _number("after", after)
    rows = repository.newest(session, filter, before, limit)
    return page(
        rows, limit, lambda row: event_entry(row[0], row[1]), lambda row: str(row[0].position)
    )


def _number(field: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > _LARGEST:
        raise field_problem(field, "is not a position in the events", text, "an `id` of an event")
    return int(text)
