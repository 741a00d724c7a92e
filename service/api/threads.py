"""Threads of the API by kind of request, so that slow requests delay neither heartbeats nor others.

A thread uses at most one database connection, so their numbers also divide the pool of connections. Threads that check
paths use none.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol, TypeVar

from anyio import CapacityLimiter, to_thread

from service.api.problems import Problem

T = TypeVar("T")

GENERAL_THREADS = 22
"""Threads of all requests without a separate pool."""
WORKER_THREADS = 16
HEAVY_THREADS = 4
"""Threads of requests that read much: metrics, results of experiments, lists of jobs, storage and use."""
STORE_THREADS = 8
"""Threads of requests that read the artifact store, which may not answer for seconds."""
UPLOAD_THREADS = 6
"""Threads of requests that store a chunk of an upload; they wait for the store, but not for the client."""
SEARCH_THREADS = 2
"""Threads of questions for neighbors; a question only takes one for moments."""
PATH_THREADS = 32
"""Threads of requests that check folders and weights, whose file system may hang."""
PATH_THREADS_PER_TOKEN = 8
"""Most of them per token, so that a hanging mount leaves threads for other tokens."""
_RETRY_AFTER = {"Retry-After": "2"}


class InThread(Protocol):
    """Runs a call in a thread; waits for one if all are busy."""

    async def __call__(self, call: Callable[[], T]) -> T: ...


def size_general_pool() -> None:
    """Set the number of threads of requests without a separate pool, in this event loop."""
    to_thread.current_default_thread_limiter().total_tokens = GENERAL_THREADS


class Threads:
    """A number of threads for one kind of request."""

    def __init__(self, number: int) -> None:
        self._limiter = CapacityLimiter(number)

    async def run(self, call: Callable[[], T]) -> T:
        """Run a call in a thread; wait for one if all are busy."""
        return await to_thread.run_sync(call, limiter=self._limiter)

    async def iterate(self, blocks: Generator[T, None, None]) -> AsyncIterator[T]:
        """Yield the blocks of an answer, each made in a thread; close the generator even if the client leaves."""
        try:
            while True:
                block = await self.run(partial(next, blocks, None))
                if block is None:
                    return
                yield block
        finally:
            # Close it without a thread, because a cancelled request must not wait.
            blocks.close()


class LimitedThreads(Threads):
    """Threads of requests that may take seconds. Few of them run at a time, and a limited number waits."""

    def __init__(
        self,
        number: int,
        *,
        kind: str,
        subject: str,
        per_token: int,
        in_all: int,
        running_per_token: int | None = None,
    ) -> None:
        """Args:
        number: most requests that run at a time.
        kind: kind of these requests in the types of problems.
        subject: subject of these requests, for messages.
        per_token: most requests of a token that run or wait.
        in_all: most requests of all tokens that run or wait.
        running_per_token: most requests of a token that run at a time; `None`: `number`.
        """
        super().__init__(number)
        self.per_token, self.in_all = per_token, in_all
        self._type, self._subject = f"too-many-{kind}-requests", subject
        self._requests: Counter[str] = Counter()
        self._running_per_token = running_per_token or number
        self._limiters: dict[str, CapacityLimiter] = {}

    @property
    def requests(self) -> int:
        """Number of requests that run or wait."""
        return self._requests.total()

    async def run_for(self, token_id: str, call: Callable[[], T]) -> T:
        """Run a call of a token in a thread; see `admitted` for errors."""
        async with self.admitted(token_id) as in_thread:
            return await in_thread(call)

    @asynccontextmanager
    async def admitted(self, token_id: str) -> AsyncIterator[InThread]:
        """Count a request of a token, and yield the runner of its calls. Between calls it holds no thread.

        Raises:
            Problem: too many such requests run or wait: 429, of the token; 503, of all tokens.
        """
        if self._requests[token_id] >= self.per_token:
            detail = (
                f"{self.per_token} requests of this token for {self._subject} are being answered; "
                "wait for some of them"
            )
            raise Problem(429, self._type, detail, headers=_RETRY_AFTER)
        if self.requests >= self.in_all:
            detail = f"The service is answering too many requests for {self._subject}; retry later"
            raise Problem(503, self._type, detail, headers=_RETRY_AFTER)
        self._requests[token_id] += 1
        if token_id not in self._limiters:
            self._limiters[token_id] = CapacityLimiter(self._running_per_token)
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


# Each context of an API process has these.
heavy_threads = partial(
    LimitedThreads, HEAVY_THREADS, kind="heavy", subject="metrics", per_token=16, in_all=64
)
store_threads = partial(
    LimitedThreads, STORE_THREADS, kind="store", subject="files and logs", per_token=32, in_all=128
)
upload_threads = partial(
    LimitedThreads,
    UPLOAD_THREADS,
    kind="upload",
    subject="chunks of uploads",
    per_token=8,
    in_all=64,
    running_per_token=UPLOAD_THREADS // 2,
)
search_threads = partial(
    LimitedThreads, SEARCH_THREADS, kind="search", subject="neighbors", per_token=16, in_all=32
)
path_threads = partial(
    LimitedThreads,
    PATH_THREADS,
    kind="path",
    subject="checks of paths (their file system may hang)",
    per_token=128,
    in_all=256,
    running_per_token=PATH_THREADS_PER_TOKEN,
)
