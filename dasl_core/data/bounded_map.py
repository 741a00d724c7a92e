"""Ordered parallel map with a bounded number of results ahead of the consumer."""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

# `ahead` for each decoding thread: enough that one large image does not leave the others idle.
AHEAD_PER_THREAD = 4
# Items from which `map_waiting` measures whether a function waits; less than a second on a slow store.
_TRIED = 16


def map_waiting(
    threads: int, function: Callable[[Item], Result], items: Sequence[Item]
) -> Generator[Result, None, None]:
    """Yield `function(item)` for each item in order, with threads if it waits for more than half of its time.

    For short functions with many system calls, such as reading a header: each call releases and reacquires the GIL,
    so on a fast disk two threads take twice as long as one.
    """
    began, worked = time.perf_counter(), time.thread_time()
    results = [function(item) for item in items[:_TRIED]]
    worked, passed = time.thread_time() - worked, time.perf_counter() - began
    yield from results
    rest = items[_TRIED:]
    if threads == 1 or worked > passed / 2:
        yield from map(function, rest)
        return
    with ThreadPoolExecutor(threads, "waiting") as pool:
        yield from bounded_map(pool, function, rest, AHEAD_PER_THREAD * threads)


def bounded_map(
    pool: ThreadPoolExecutor,
    function: Callable[[Item], Result],
    items: Iterable[Item],
    ahead: int,
    *,
    cost: Callable[[Item], int] = lambda item: 0,
    budget: int = 0,
) -> Generator[Result, None, None]:
    """Yield `function(item)` for each item in order, computed at most `ahead` items in advance.

    `ThreadPoolExecutor.map` submits all items at once and keeps each result until it is taken: a
    consumer slower than the threads, such as a disk, then fills the memory.

    Args:
        cost: returns the cost of an item, such as the memory that it needs.
        budget: limit on the total cost of items computed in advance; a larger item is computed alone.
    """
    pending: deque[tuple[Future[Result], int]] = deque()
    spent = 0
    try:
        for item in items:
            price = cost(item)
            while pending and (len(pending) == ahead or spent + price > budget):
                future, paid = pending.popleft()
                yield future.result()
                spent -= paid
            pending.append((pool.submit(function, item), price))
            spent += price
        while pending:
            yield pending.popleft()[0].result()
    finally:
        for future, _ in pending:
            future.cancel()
