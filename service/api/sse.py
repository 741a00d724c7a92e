"""Server-sent events: a stream that looks for news now and then and holds nothing in between."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import anyio
from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from service.api.auth import Caller
from service.api.problems import Problem
from service.api.transaction import Context
from service.tokens import repository as tokens

# Each looks at the database twice a second, on one of the 40 threads that all requests share.
_PER_TOKEN = 100


@dataclass(frozen=True)
class Message:
    """One event of a stream; a client that lost its connection resumes behind `id`."""

    id: str
    event: str
    data: str

    def encode(self) -> bytes:
        """As it goes over the wire."""
        lines = "".join(f"data: {line}\n" for line in self.data.split("\n"))
        return f"id: {self.id}\nevent: {self.event}\n{lines}\n".encode()


@dataclass(frozen=True)
class News:
    """What one look found. `more`: look again at once; `ended`: nothing will ever follow."""

    messages: Sequence[Message]
    more: bool = False
    ended: bool = False


def wants_stream(request: Request) -> bool:
    """Whether the client asks for server-sent events."""
    return "text/event-stream" in request.headers.get("accept", "")


def stream(context: Context, caller: Caller, look: Callable[[], News]) -> StreamingResponse:
    """An answer that goes on until `look` says that everything was sent, or the token is revoked.

    Raises:
        Problem: 429, the token has too many.
    """
    if context.streams[caller.token_id] >= _PER_TOKEN:
        raise Problem(
            429, "too-many-streams", f"{_PER_TOKEN} live streams of this token are open: close some"
        )
    return StreamingResponse(
        _messages(context, caller, look),
        media_type="text/event-stream",
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
        with context.database.look() as session:
            token = tokens.get(session, caller.tenant, caller.token_id)
            return token is None or token.revoked_at is not None

    # Sent at once, so that a client knows it is connected before anything happens.
    yield b"retry: 2000\n\n"
    spoke = asked = time.monotonic()
    while not context.closing.is_set():
        if time.monotonic() - asked >= settings.stream_heartbeat_seconds:
            if await run_in_threadpool(revoked):
                return
            asked = time.monotonic()
        news = await run_in_threadpool(look)
        if news.messages:
            yield b"".join(message.encode() for message in news.messages)
            spoke = time.monotonic()
        if news.ended:
            return
        if news.more:
            continue
        if time.monotonic() - spoke >= settings.stream_heartbeat_seconds:
            # A comment: keeps proxies from closing the connection, and finds out closed ones.
            yield b": still here\n\n"
            spoke = time.monotonic()
        await anyio.sleep(settings.stream_poll_seconds)
