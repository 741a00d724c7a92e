"""Threads of the API by kind of request, so that slow ones delay neither heartbeats nor other requests.

A thread uses at most one database connection, so their numbers also divide the pool of connections. Those that
check paths use none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol, TypeVar

from anyio import CapacityLimiter, to_thread

from service.api.problems import Problem

T = TypeVar("T")

GENERAL_THREADS = 22
"""Threads of all requests that have no pool of their own."""
WORKER_THREADS = 16
HEAVY_THREADS = 4
STORE_THREADS = 8
"""Threads of requests that read the artifact store, which may not answer for seconds."""
UPLOAD_THREADS = 6
"""Threads of requests that store a chunk of an upload; each waits for the store, but not for its client."""
SEARCH_THREADS = 2
"""Threads of questions for neighbors; each question takes one only for moments."""
PATH_THREADS = 32
"""Threads of requests that check folders and weights, whose file system may hang."""
PATH_THREADS_OF_TOKEN = 8
"""How many of them a token may use, so that a mount that hangs leaves threads for the paths of others."""
_RETRY_AFTER = {"Retry-After": "2"}


class InThread(Protocol):
    """Runs a call in a thread; it waits for one if all are busy."""

    async def __call__(self, call: Callable[[], T]) -> T:
        """Return what the call returns."""
        ...


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

    async def iterate(self, blocks: Generator[T, None, None]) -> AsyncIterator[T]:
        """Yield the blocks of an answer; each is made in a thread. Close them also if the client leaves."""
        try:
            while True:
                block = await self.run(partial(next, blocks, None))
                if block is None:
                    return
                yield block
        finally:
            # Without a thread: whoever cancels a request allows no further waiting.
            blocks.close()


class LimitedThreads(Threads):
    """Threads of requests that may take seconds. Few of them run at once, and a limited number waits."""

    def __init__(
        self,
        number: int,
        *,
        kind: str,
        of: str,
        per_token: int,
        in_all: int,
        number_of_token: int | None = None,
    ) -> None:
        """Args:
        number: requests that run at once.
        kind: word for these requests in the types of problems.
        of: what such a request is for.
        per_token: requests of a token that may run or wait.
        in_all: requests of all tokens that may run or wait.
        number_of_token: requests of a token that run at once; `None`: `number`.
        """
        super().__init__(number)
        self.per_token, self.in_all = per_token, in_all
        self._type, self._of = f"too-many-{kind}-requests", of
        self._requests: Counter[str] = Counter()
        self._number_of_token = number_of_token or number
        self._limiters: dict[str, CapacityLimiter] = {}

    @property
    def requests(self) -> int:
        """Number of requests that run or wait."""
        return self._requests.total()

    async def run_for(self, token_id: str, call: Callable[[], T]) -> T:
        """Run a call of a token in a thread; raises as `admitted`."""
        async with self.admitted(token_id) as in_thread:
            return await in_thread(call)

    @asynccontextmanager
    async def admitted(self, token_id: str) -> AsyncIterator[InThread]:
        """Count a request of a token, and yield what runs its calls: in between it holds no thread.

        Raises:
            Problem: 429, too many such requests of the token run or wait; 503, of all tokens.
        """
        if self._requests[token_id] >= self.per_token:
            detail = (
                f"{self.per_token} requests of this token for {self._of} are being answered; "
                "wait for some of them"
            )
            raise Problem(429, self._type, detail, headers=_RETRY_AFTER)
        if self.requests >= self.in_all:
            detail = f"The service is answering too many requests for {self._of}; retry later"
            raise Problem(503, self._type, detail, headers=_RETRY_AFTER)
        self._requests[token_id] += 1
        if token_id not in self._limiters:
            self._limiters[token_id] = CapacityLimiter(self._number_of_token)
        limiter = self._limiters[token_id]

        async def in_thread(call: Callable[[], T]) -> T:
            async with limiter:
                return await self.run(call)

        try:
            yield in_thread
        finally:
            self._requests[token_id] -= 1
            if not self._requests[token_id]:
                del self._requests[token_id], self._limiters[token_id]


def heavy_threads() -> LimitedThreads:
    """Return the threads of requests for metrics, which read and encode up to a million values."""
    return LimitedThreads(HEAVY_THREADS, kind="heavy", of="metrics", per_token=16, in_all=64)


def store_threads() -> LimitedThreads:
    """Return the threads of requests that read the artifact store, which may not answer for seconds."""
    return LimitedThreads(
        STORE_THREADS, kind="store", of="files and logs", per_token=32, in_all=128
    )


def upload_threads() -> LimitedThreads:
    """Return the threads of requests that store a chunk of an upload."""
    return LimitedThreads(
        UPLOAD_THREADS,
        kind="upload",
        of="chunks of uploads",
        per_token=8,
        in_all=64,
        number_of_token=UPLOAD_THREADS // 2,
    )


def search_threads() -> LimitedThreads:
    """Return the threads of questions for neighbors; each may bring an image of many megabytes."""
    return LimitedThreads(SEARCH_THREADS, kind="search", of="neighbors", per_token=16, in_all=32)


def path_threads() -> LimitedThreads:
    """Return the threads of requests that check folders and weights, whose file system may hang."""
    return LimitedThreads(
        PATH_THREADS,
        kind="path",
        of="checks of paths (their file system may hang)",
        per_token=128,
        in_all=256,
        number_of_token=PATH_THREADS_OF_TOKEN,
    )
