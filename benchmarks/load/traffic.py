"""Requests at a fixed rate, independent of the responses, and statistics of the responses.

Latency counts from the time at which a request was due. A server that stalls for a second is therefore
charged for all requests of that second, not for one slow response (this avoids coordinated omission).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

_PATIENCE_SECONDS = 60.0
# Concurrent requests of one kind: enough for a stall of a minute.
_MOST_AT_ONCE = 10_000


@dataclass
class Tally:
    """Responses to one kind of request: their durations in seconds, and the number of each status."""

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)

    def add(self, seconds: float, status: str) -> None:
        """Count one response."""
        self.seconds.append(seconds)
        self.statuses[status] += 1

    def summary(self) -> dict[str, Any]:
        """Return count, p50, p99 and maximum in milliseconds, and statuses, ready for JSON."""
        return {"count": len(self.seconds), **percentiles(self.seconds)} | {
            "statuses": dict(sorted(self.statuses.items()))
        }


class Tallies(dict[str, Tally]):
    """Statistics by kind of request."""

    def add(self, kind: str, seconds: float, status: str) -> None:
        """Count one response."""
        self.setdefault(kind, Tally()).add(seconds, status)

    def take(self) -> Tallies:
        """Return and reset the statistics."""
        taken = Tallies(self)
        self.clear()
        return taken


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return median, 99th percentile and maximum in milliseconds; empty without values."""
    if not seconds:
        return {}
    ordered = sorted(seconds)

    def at(share: float) -> float:
        return round(1000 * ordered[math.ceil(share * len(ordered)) - 1], 1)

    return {"p50_ms": at(0.5), "p99_ms": at(0.99), "max_ms": at(1.0)}


class Sender:
    """Sends requests to one server and counts the responses."""

    def __init__(self, url: str, tallies: Tallies) -> None:
        self._url, self.tallies = url, tallies
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Sender:
        self._session = aiohttp.ClientSession(
            # Shorter than uvicorn's 5 s, or a request may be sent while the server closes the connection.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=3),
            timeout=aiohttp.ClientTimeout(total=_PATIENCE_SECONDS),
        )
        return self

    async def __aexit__(self, *exception: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def send(
        self,
        kind: str,
        due: float,
        method: str,
        path: str,
        token: str,
        body: object = None,
        key: str | None = None,
    ) -> tuple[int, bytes]:
        """Send a request that was due at this time of the monotonic clock; return status and body.

        The status of a request without an answer is 0.
        """
        assert self._session is not None
        headers = {"Authorization": f"Bearer {token}"}
        if key is not None:
            headers["Idempotency-Key"] = key
        try:
            async with self._session.request(
                method, self._url + path, json=body, headers=headers
            ) as answer:
                content = await answer.read()
                status, said = answer.status, str(answer.status)
        except (aiohttp.ClientError, TimeoutError) as error:
            status, said, content = 0, type(error).__name__, b""
        self.tallies.add(kind, time.monotonic() - due, said)
        return status, content


async def at_rate(
    rate: float, seconds: float, request: Callable[[int, float], Awaitable[object]]
) -> None:
    """Call `request(number, due)` `rate` times a second, and wait for the last of them.

    Args:
        request: receives the number of the call and its due time; many may run concurrently.
    """
    began = time.monotonic()
    pending: set[asyncio.Task[object]] = set()
    for number in range(int(rate * seconds)):
        due = began + number / rate
        if (wait := due - time.monotonic()) > 0:
            await asyncio.sleep(wait)
        assert len(pending) < _MOST_AT_ONCE, "the server answers nothing"
        task: asyncio.Task[object] = asyncio.ensure_future(_awaited(request(number, due)))
        pending.add(task)
        task.add_done_callback(pending.discard)
    while pending:
        await asyncio.gather(*pending)


async def _awaited(request: Awaitable[object]) -> object:
    return await request
