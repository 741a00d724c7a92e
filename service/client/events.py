# Written by tools.sync_client from aio/events.py; edit that file.
"""Events of all jobs of the tenant: `client.events` and `client.stream_events`."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence

from service.client.errors import ConnectionFailed
from service.client.models import TenantEvent
from service.client.sse import parse
from service.client.threads import sleep
from service.client.transport import Params, Transport, path_to
from service.client.waiting import OUTAGE_SECONDS

Names = str | Sequence[str] | None


def newest(
    transport: Transport, job: Names, type: Names, level: Names, page_size: int
) -> Iterator[TenantEvent]:
    """Iterate over the events, newest first."""
    params = {"job": job, "type": type, "level": level, "limit": page_size}
    for item in transport.pages(path_to("events"), params):
        yield TenantEvent.model_validate(item)


def live(
    transport: Transport, job: Names, type: Names, level: Names, after: int | None
) -> Generator[TenantEvent, None, None]:
    """Iterate over events as they happen, over lost connections."""
    params: Params = {"job": job, "type": type, "level": level}
    if after is None:  # so that none is lost before the first one arrives
        first = next(newest(transport, None, None, None, 1), None)
        after = 0 if first is None else first.id
    last_answer, pause = time.monotonic(), 0.2
    while True:
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        try:
            with transport.stream(path_to("events"), params=params, headers=headers) as response:
                for message in parse(response.iter_bytes()):
                    last_answer, pause = time.monotonic(), 0.2
                    after = int(message.id)
                    yield TenantEvent.model_validate_json(message.data)
        except ConnectionFailed:
            if time.monotonic() - last_answer > OUTAGE_SECONDS:
                raise
        else:
            last_answer = time.monotonic()
        sleep(pause)
        pause = min(pause * 2, 5.0)
