"""Parser of server-sent events (WHATWG format)."""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, AsyncIterator

from service.client.models import ServerSentEvent

_LINE_END = re.compile(rb"\r\n|\n|\r")


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
