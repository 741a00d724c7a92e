"""Events of all jobs of the tenant: `client.events` and `client.stream_events`."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from service.client.aio.sse import parse
from service.client.aio.threads import sleep
from service.client.aio.transport import AsyncTransport, Params, path_to
from service.client.aio.waiting import OUTAGE_SECONDS
from service.client.errors import ConnectionFailed
from service.client.models import read
from service.wire.events import EventEntry

Names = str | Sequence[str] | None


async def newest(
    transport: AsyncTransport, job: Names, type: Names, level: Names, page_size: int
) -> AsyncIterator[EventEntry]:
    """Iterate over the events, newest first."""
    params = {"job": job, "type": type, "level": level, "limit": page_size}
    async for item in transport.pages(path_to("events"), params):
        yield read(EventEntry, item)


async def live(
    transport: AsyncTransport, job: Names, type: Names, level: Names, after: int | None
) -> AsyncGenerator[EventEntry, None]:
    """Iterate over events as they happen, even after lost connections."""
    params: Params = {"job": job, "type": type, "level": level}
    if after is None:  # so that no event is lost before the first one arrives
        first = await anext(newest(transport, None, None, None, 1), None)
        after = 0 if first is None else first.id
    last_answer, pause = time.monotonic(), 0.2
    while True:
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        try:
            async with transport.stream(
                path_to("events"), params=params, headers=headers
            ) as response:
                async for message in parse(response.aiter_bytes()):
                    last_answer, pause = time.monotonic(), 0.2
                    after = int(message.id)
                    yield read(EventEntry, json.loads(message.data))
        except ConnectionFailed:
            if time.monotonic() - last_answer > OUTAGE_SECONDS:
                raise
        else:
            last_answer = time.monotonic()
        await sleep(pause)
        pause = min(pause * 2, 5.0)
