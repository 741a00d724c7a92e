"""Thread pool for rendering on a CPU, with single-threaded torch operations."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from threading import Barrier
from typing import TypeVar

import torch

Item = TypeVar("Item")


def for_each(work: Callable[[Item], None], items: Iterable[Item]) -> None:
    """Call a function with each item, on as many threads as torch has for an operation.

    Results do not depend on the number of threads, since each item is processed by one thread. The threads take
    the gradient and inference modes of the caller.

    Raises:
        Exception: what a call raised.
    """
    threads = torch.get_num_threads()
    if threads == 1:
        for item in items:
            work(item)
        return
    inference, gradients = torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    def call(item: Item) -> None:
        # Both modes are thread-local.
        with torch.inference_mode(inference), torch.set_grad_enabled(gradients):
            work(item)

    for _ in _pool(threads, os.getpid()).map(call, items):
        pass


@lru_cache(maxsize=1)
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Start threads, separately in each process since a fork does not copy them."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix="views")
    started = Barrier(threads + 1)

    def start() -> None:
        torch.set_num_threads(1)  # of this thread, and of all that are created from now on
        started.wait()

    for _ in range(threads):
        pool.submit(start)
    started.wait()
    torch.set_num_threads(threads)  # of other threads, which are created later
    return pool
