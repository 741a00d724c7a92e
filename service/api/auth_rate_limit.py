"""A rate limit on failed authentication, by client address.

It keeps a broken or hostile client from filling logs, and makes it visible; tokens have 256 random bits and cannot be
guessed. Valid tokens are never limited, because a whole office may share one address.
"""

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.json_body import client_address
from service.api.problems import Problem

logger = logging.getLogger(__name__)
_WINDOW_SECONDS = 60.0
# Beyond this number of addresses, the ones with the oldest failures are dropped.
_MAX_ADDRESSES = 10_000


class Failures:
    """Counts the failures of each address, or of each token, within the last minute.

    Args:
        limit: failures allowed per minute.
        clock: returns seconds since an arbitrary start.
    """

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._clock = limit, clock
        self._times: OrderedDict[str, deque[float]] = OrderedDict()
        self._warned: set[str] = set()
        self._lock = threading.Lock()

    def count(self, address: str) -> float | None:
        """Count a failure; above the limit, return the seconds to wait instead."""
        with self._lock:
            now = self._clock()
            times = self._times.setdefault(address, deque())
            self._times.move_to_end(address)
            if len(self._times) > _MAX_ADDRESSES:
                dropped, _ = self._times.popitem(last=False)
                self._warned.discard(dropped)
            while times and now - times[0] >= _WINDOW_SECONDS:
                times.popleft()
            if not times:
                self._warned.discard(address)
            if len(times) >= self._limit:
                return _WINDOW_SECONDS - (now - times[0])
            times.append(now)
            if len(times) == self._limit and address not in self._warned:
                self._warned.add(address)
                logger.warning(
                    "%s was refused %d times within a minute; further failures are answered with 429",
                    address,
                    self._limit,
                )
            return None


class FailedAuthLimit:
    """ASGI middleware that turns too many 401 answers to one address into 429, for all endpoints."""

    def __init__(self, app: ASGIApp, failures: Failures) -> None:
        self.app = app
        self.failures = failures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and replace its 401 by a 429 above the limit."""
        replaced = False

        async def watched(message: Message) -> None:
            nonlocal replaced
            if message["type"] == "http.response.start" and message["status"] == 401:
                wait = self.failures.count(client_address(scope) or "")
                if wait is not None:
                    replaced = True
                    problem = too_many(
                        "The request has no valid token. Too many requests from this address had none; retry later",
                        wait,
                    )
                    await problem.response()(scope, receive, send)
            if not replaced:
                await send(message)

        await self.app(scope, receive, watched)


def too_many(detail: str, wait: float) -> Problem:
    """Build a 429 problem with a `Retry-After` header."""
    return Problem(429, "too-many-failures", detail, headers={"Retry-After": str(int(wait) + 1)})
