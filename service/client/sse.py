"""Server-sent events (the WHATWG wire format), read from an iterator of bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True)
class ServerSentEvent:
    """One message: its `id` (last one seen, "" when none), its `event` name and its data."""

    id: str
    event: str
    data: str


def parse(chunks: Iterable[bytes]) -> Iterator[ServerSentEvent]:
    """Yield complete messages; one cut off by the end of the stream is dropped, as the format says."""
    last_id, name, data = "", "", list[str]()
    for raw in _lines(chunks):
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


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    # Only the three line ends of the format count: str.splitlines would also cut at U+2028 in JSON.
    buffer = b""
    for chunk in chunks:
        buffer += chunk
        start = 0
        for match in _LINE_END.finditer(buffer):
            if match.group() == b"\r" and match.end() == len(buffer):
                break  # perhaps the first half of \r\n
            yield buffer[start : match.start()]
            start = match.end()
        buffer = buffer[start:]
    if buffer.endswith(b"\r"):
        yield buffer[:-1]
