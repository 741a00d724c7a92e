"""Server-sent events: a stream that looks for news now and then and holds nothing in between."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import anyio
from fastapi import Request
from fastapi.sse import EventSourceResponse, format_sse_event
from starlette.concurrency import run_in_threadpool

from service.api import repository
from service.api.auth import Caller
from service.api.problems import Problem
from service.api.transaction import Context

# Each looks at the database twice a second, on one of the 40 threads that all requests share.
_PER_TOKEN = 100


@dataclass(frozen=True)
class News:
    """The result of one poll.

    Attributes:
        messages: from `format_sse_event`; a client that lost its connection resumes after the
            last `id`.
        more: poll again at once.
        ended: nothing will ever follow.
    """

    messages: Sequence[bytes]
    more: bool = False
    ended: bool = False


def wants_stream(request: Request) -> bool:
    """Whether the client asks for server-sent events."""
    return "text/event-stream" in request.headers.get("accept", "")


def stream(context: Context, caller: Caller, look: Callable[[], News]) -> EventSourceResponse:
    """An answer that goes on until `look` says that everything was sent, or the token is revoked.

    Raises:
        Problem: 429, the token has too many.
    """
    if context.streams[caller.token_id] >= _PER_TOKEN:
        raise Problem(
            429, "too-many-streams", f"{_PER_TOKEN} live streams of this token are open: close some"
        )
    return EventSourceResponse(
        _messages(context, caller, look),
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _messages(
    context: Context, caller: Caller, look: Callable[[], News]
) -> AsyncIterator[bytes]:
    context.streams[caller.token_id] += 1
    try:
        async for block in _news(context, caller, look):
            yield block
    finally:
        context.streams[caller.token_id] -= 1


async def _news(context: Context, caller: Caller, look: Callable[[], News]) -> AsyncIterator[bytes]:
    settings = context.settings

    def revoked() -> bool:
        with context.database.autocommit() as session:
            return repository.is_revoked(session, caller.token_id)

    # Sent at once, so that a client knows it is connected before anything happens.
    yield format_sse_event(retry=2000)
    spoke = asked = time.monotonic()
    while not context.closing.is_set():
        if time.monotonic() - asked >= settings.stream_heartbeat_seconds:
            if await run_in_threadpool(revoked):
                return
            asked = time.monotonic()
        news = await run_in_threadpool(look)
        if news.messages:
            yield b"".join(news.messages)
            spoke = time.monotonic()
        if news.ended:
            return
        if news.more:
            continue
        if time.monotonic() - spoke >= settings.stream_heartbeat_seconds:
            # A comment: keeps proxies from closing the connection, and finds out closed ones.
            yield format_sse_event(comment="still here")
            spoke = time.monotonic()
        await anyio.sleep(settings.stream_poll_seconds)
