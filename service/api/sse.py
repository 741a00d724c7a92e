"""Server-sent events by polling; between two polls a stream holds neither a thread nor a connection."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import anyio
from fastapi import Request
from fastapi.sse import EventSourceResponse, format_sse_event
from starlette.concurrency import run_in_threadpool

from service.api import repository
from service.api.auth import Caller
from service.api.problems import Problem
from service.api.transaction import Context

# Limited, because each stream polls the database twice per second.
_PER_TOKEN = 100
# Twice the processor time that a poll of an idle stream of a job takes, so that all of them take half of a core at most:
# 1.8 ms, measured on two busy cores with a database of a million jobs.
_SECONDS_EACH = 0.0036


@dataclass(frozen=True)
class PollResult:
    """The result of one poll.

    Attributes:
        messages: from `format_sse_event`; a client that reconnects resumes after the last `id`.
        more: whether to poll again immediately.
        ended: whether no message will follow.
    """

    messages: Sequence[bytes]
    more: bool = False
    ended: bool = False


Run = Callable[[Callable[[], PollResult]], Awaitable[PollResult]]


def wants_stream(request: Request) -> bool:
    """Whether the client asks for server-sent events."""
    return "text/event-stream" in request.headers.get("accept", "")


def stream(
    context: Context, caller: Caller, poll: Callable[[], PollResult], run: Run = run_in_threadpool
) -> EventSourceResponse:
    """Stream the messages of `poll` until it reports the end, or the token is no longer valid or has another scope.

    Args:
        run: calls `poll` in a thread; by default in the threads that most requests share.

    Raises:
        Problem: 429, the token has too many open streams.
    """
    if context.streams[caller.token_id] >= _PER_TOKEN:
        raise Problem(
            429,
            "too-many-streams",
            f"This token has {_PER_TOKEN} open live streams; close some first",
        )
    return EventSourceResponse(
        _messages(context, caller, poll, run),
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


def pause(poll_seconds: float, streams: int) -> float:
    """Return the seconds between two polls of a stream: the more are open, the longer."""
    return max(poll_seconds, _SECONDS_EACH * streams)


async def _messages(
    context: Context, caller: Caller, poll: Callable[[], PollResult], run: Run
) -> AsyncIterator[bytes]:
    """Yield the messages, and count the stream as open until they end."""
    settings = context.settings

    def refused() -> bool:
        with context.database.autocommit() as session:
            now, cookie = datetime.now(UTC), caller.session_hash
            credential = (
                repository.credential_by_id(session, caller.token_id)
                if cookie is None
                else repository.credential_by_session(session, cookie, now)
            )
            if credential is None or credential.refusal(now) is not None:
                return True
            # What the stream needed was checked with the scope of its start. Its client connects again.
            return credential.scope != caller.scope

    context.streams[caller.token_id] += 1
    try:
        # Send it immediately, so that a client knows that it is connected before the first event.
        yield format_sse_event(retry=2000)
        sent_at = checked_at = time.monotonic()
        while not context.closing.is_set():
            if time.monotonic() - checked_at >= settings.stream_heartbeat_seconds:
                if await run_in_threadpool(refused):
                    return
                checked_at = time.monotonic()
            result = await run(poll)
            if result.messages:
                yield b"".join(result.messages)
                sent_at = time.monotonic()
            if result.ended:
                return
            if result.more:
                continue
            if time.monotonic() - sent_at >= settings.stream_heartbeat_seconds:
                # A comment keeps proxies from closing the connection, and detects a closed connection.
                yield format_sse_event(comment="still here")
                sent_at = time.monotonic()
            await anyio.sleep(pause(settings.stream_poll_seconds, context.streams.total()))
    finally:
        context.streams[caller.token_id] -= 1
