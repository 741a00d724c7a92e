"""Results of a thread pool in order, a bounded number of them ahead of their consumer."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

# A good `ahead` for each decoding thread: one large image does not leave the other threads idle.
AHEAD_PER_THREAD = 4


def bounded_map(
    pool: ThreadPoolExecutor, function: Callable[[Item], Result], items: Iterable[Item], ahead: int
) -> Iterator[Result]:
    """Yield `function(item)` for each item in order, computed at most `ahead` items in advance.

    `ThreadPoolExecutor.map` submits all items at once and keeps each result until it is taken: a
    consumer slower than the threads, such as a disk, then fills the memory.
    """
    pending: deque[Future[Result]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) == ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()
