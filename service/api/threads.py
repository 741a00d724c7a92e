"""Threads of the API by kind of request, so that slow ones delay neither heartbeats nor other requests.

A thread uses at most one database connection, so their numbers also divide the pool of connections.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

from service.api.problems import Problem

T = TypeVar("T")

GENERAL_THREADS = 24
"""Threads of all requests that have no pool of their own."""
WORKER_THREADS = 16
HEAVY_THREADS = 4
STORE_THREADS = 8
"""Threads of requests that read the artifact store, which may not answer for seconds."""
# Running and waiting: of a token, and of all together.
_HEAVY_PER_TOKEN = 16
_HEAVY_REQUESTS = 64
_RETRY_AFTER = {"Retry-After": "2"}


def size_general_pool() -> None:
    """Set the number of threads of the requests that have no pool of their own, in this event loop."""
    to_thread.current_default_thread_limiter().total_tokens = GENERAL_THREADS


class Threads:
    """A number of threads for one kind of request."""

    def __init__(self, number: int) -> None:
        self._limiter = CapacityLimiter(number)

    async def run(self, call: Callable[[], T]) -> T:
        """Run a call in a thread; it waits for one if all are busy."""
        return await to_thread.run_sync(call, limiter=self._limiter)

    async def iterate(self, blocks: Iterator[T]) -> AsyncIterator[T]:
        """Yield the blocks of an answer; each is made in a thread."""
        while True:
            block = await self.run(partial(next, blocks, None))
            if block is None:
                return
            yield block


class HeavyThreads(Threads):
    """Threads of requests that may take seconds. Few of them run at once, and a limited number waits."""

    def __init__(self) -> None:
        super().__init__(HEAVY_THREADS)
        self._requests: Counter[str] = Counter()

    @property
    def requests(self) -> int:
        """Number of requests that run or wait."""
        return self._requests.total()

    async def run_for(self, token_id: str, call: Callable[[], T]) -> T:
        """Run a call of a token in a thread; it waits for one if all are busy.

        Raises:
            Problem: 429, too many such requests of the token run or wait; 503, of all tokens.
        """
        if self._requests[token_id] >= _HEAVY_PER_TOKEN:
            detail = (
                f"{_HEAVY_PER_TOKEN} requests of this token for metrics are being answered; "
                "wait for some of them"
            )
            raise Problem(429, "too-many-heavy-requests", detail, headers=_RETRY_AFTER)
        if self.requests >= _HEAVY_REQUESTS:
            detail = "The service is answering too many requests for metrics; retry later"
            raise Problem(503, "too-many-heavy-requests", detail, headers=_RETRY_AFTER)
        self._requests[token_id] += 1
        try:
            return await self.run(call)
        finally:
            self._requests[token_id] -= 1
            if not self._requests[token_id]:
                del self._requests[token_id]
