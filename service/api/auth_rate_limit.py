"""A limit on what is refused: failed authentication, by the address that it comes from.

It does not protect the tokens, whose 256 random bits nobody guesses. It keeps one broken or hostile
client from filling logs and makes it visible. A good token therefore works from any address, always:
behind one address there may be a whole office, and one broken client in it must not lock out the rest.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.json_body import client_address
from service.api.problems import Problem

_logger = logging.getLogger(__name__)
_WINDOW_SECONDS = 60.0
# Of more addresses than this, those that failed longest ago are forgotten.
_ADDRESSES = 10_000


class Failures:
    """Failures of each address, or of each token, within the last minute.

    Args:
        limit: how many are let pass.
        clock: seconds from any beginning.
    """

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._clock = limit, clock
        self._times: OrderedDict[str, deque[float]] = OrderedDict()
        self._told: set[str] = set()
        self._lock = threading.Lock()

    def count(self, address: str) -> float | None:
        """Count one more failure, unless there were too many: then the seconds until one may be."""
        with self._lock:
            return self._count(address)

    def _count(self, address: str) -> float | None:
        now = self._clock()
        times = self._times.setdefault(address, deque())
        self._times.move_to_end(address)
        if len(self._times) > _ADDRESSES:
            forgotten, _ = self._times.popitem(last=False)
            self._told.discard(forgotten)
        while times and now - times[0] >= _WINDOW_SECONDS:
            times.popleft()
        if not times:
            self._told.discard(address)
        if len(times) >= self._limit:
            return _WINDOW_SECONDS - (now - times[0])
        times.append(now)
        if len(times) == self._limit and address not in self._told:
            self._told.add(address)
            _logger.warning(
                "%s was refused %d times within a minute; what follows is answered with 429",
                address,
                self._limit,
            )
        return None


class FailedAuthLimit:
    """ASGI middleware: a 401 too many from one address becomes a 429, whichever door it came to."""

    def __init__(self, app: ASGIApp, failures: Failures) -> None:
        self.app = app
        self.failures = failures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Look at each answer's status."""
        replaced = False

        async def watched(message: Message) -> None:
            nonlocal replaced
            if message["type"] == "http.response.start" and message["status"] == 401:
                wait = self.failures.count(client_address(scope) or "")
                if wait is not None:
                    replaced = True
                    problem = too_many(
                        "The request has no token that is good here, like too many before it from "
                        "this address",
                        wait,
                    )
                    await problem.response()(scope, receive, send)
            if not replaced:
                await send(message)

        await self.app(scope, receive, watched)


def too_many(detail: str, wait: float) -> Problem:
    """429, with the seconds to wait for."""
    return Problem(429, "too-many-failures", detail, headers={"Retry-After": str(int(wait) + 1)})
