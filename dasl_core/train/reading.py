"""Opening of data sets by all ranks together, which may decode images for hours."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event
from typing import TypeVar

from dasl_core.data.cache_build import OnRead
from dasl_core.distributed import gather_objects
from dasl_core.train.interruption import Interruption

# Interval at which ranks exchange their progress.
_EXCHANGE_SECONDS = 1.0

T = TypeVar("T")


class _Abandoned(Exception):
    """Raised to end the reading of a rank after the run has ended."""


def read_together(
    open_data: Callable[[OnRead], T],
    images: int,
    interruption: Interruption,
) -> T:
    """Open the data sets on every rank while rank 0 reports how many images the slowest rank has read.

    Nodes without a shared cache read separately. A rank that is ready must not wait in a collective, which would
    time out, and rank 0 must report the progress of the others.

    Args:
        open_data: opens the data sets, and calls its argument as `Canvases` does.
        images: number of images of all data sets.

    Raises:
        Interrupted: the user requested to stop. Images already read stay in the cache.
        Exception: the exception of `open_data` on this rank.
    """
    read, stop, waited = 0, Event(), False

    def report(number: int) -> None:
        interruption.reporter.progress({"images_read": number, "images_total": images})

    def on_read(number: int) -> None:
        nonlocal read
        read = number
        if stop.is_set():
            raise _Abandoned

    with ThreadPoolExecutor(1, thread_name_prefix="open") as thread:
        opening = thread.submit(open_data, on_read)
        try:
            while True:
                wait([opening], _EXCHANGE_SECONDS)
                if opening.done():
                    opening.result()  # an error ends this rank at once
                ranks = gather_objects((opening.done(), read), interruption.control)
                if all(done for done, _ in ranks):
                    break
                report(min(images if done else number for done, number in ranks))
                waited = True
                interruption.check_step()
        finally:
            stop.set()  # leaving the `with` waits for the thread
    if waited:
        report(images)
    return opening.result()
