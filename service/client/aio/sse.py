"""Server-sent events (WHATWG format): parser, and streams that survive lost connections."""

import re
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable

from service.client.aio.threads import sleep
from service.client.aio.transport import AsyncTransport, Params
from service.client.aio.waiting import OUTAGE_SECONDS
from service.client.errors import ConnectionFailed
from service.client.models import ServerSentEvent

_LINE_END = re.compile(rb"\r\n|\n|\r")


async def follow(
    transport: AsyncTransport,
    path: str,
    params: Params,
    last_id: str = "",
    has_ended: Callable[[], Awaitable[bool]] | None = None,
) -> AsyncGenerator[ServerSentEvent, None]:
    """Yield each message after `last_id` once and in order, reconnecting after lost connections.

    Args:
        has_ended: whether the stream gets no new messages; None: it has no end.

    Raises:
        ConnectionFailed: the server has not answered for minutes.
    """
    last_answer, pause = time.monotonic(), 0.2
    while True:
        headers = {"Accept": "text/event-stream"}
        if last_id:
            headers["Last-Event-ID"] = last_id
        try:
            # Ask before the stream opens: only then is an ended one complete.
            ended = has_ended is not None and await has_ended()
            async with transport.stream(path, params=params, headers=headers) as response:
                async for message in parse(response.aiter_bytes()):
                    last_answer, pause = time.monotonic(), 0.2
                    last_id = message.id or last_id
                    yield message
        except ConnectionFailed:
            if time.monotonic() - last_answer > OUTAGE_SECONDS:
                raise
        else:
            last_answer = time.monotonic()
            if ended:
                return
        await sleep(pause)
        pause = min(pause * 2, 5.0)


async def parse(chunks: AsyncIterable[bytes]) -> AsyncIterator[ServerSentEvent]:
    """Yield complete messages; drop an incomplete last one, as the format requires."""
    last_id, name, data = "", "", list[str]()
    async for raw in _lines(chunks):
        line = raw.decode("utf-8", errors="replace")
        if not line:
            if data:
                yield ServerSentEvent(last_id, name or "message", "\n".join(data))
            name, data = "", []
            continue
        key, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if key == "data":
            data.append(value)
        elif key == "event":
            name = value
        elif key == "id" and "\0" not in value:
            last_id = value


async def _lines(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    # The format has three line ends; str.splitlines would also split at U+2028 inside JSON.
    buffer = b""
    async for chunk in chunks:
        buffer += chunk
        start = 0
        for match in _LINE_END.finditer(buffer):
            if match.group() == b"\r" and match.end() == len(buffer):
                break  # may be the first half of \r\n
            yield buffer[start : match.start()]
            start = match.end()
        buffer = buffer[start:]
    if buffer.endswith(b"\r"):
        yield buffer[:-1]
