"""Opening of the data sets, which may decode images for hours, by all ranks of a run together."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event
from typing import TypeVar

from dasl_core.data.canvas_file import OnRead
from dasl_core.distributed import gather_objects
from dasl_core.train.interruption import Interruption

# The ranks exchange how far they are at this interval.
_EXCHANGE_SECONDS = 1.0

T = TypeVar("T")


class _Abandoned(Exception):
    """Ends the reading of a rank whose run has ended."""


def read_together(
    open_data: Callable[[OnRead], T],
    images: int,
    interruption: Interruption,
) -> T:
    """Open the data sets on every rank while rank 0 reports how many images the slowest rank has read.

    Nodes without a common cache read separately. A rank that is ready must therefore not wait in a
    collective, which would end with a timeout, and rank 0 must tell that another one is at work.

    Args:
        open_data: opens them, and calls its argument as `Canvases` does.
        images: number of images of all data sets.

    Raises:
        Interrupted: the user requested to stop. What was read stays in the cache.
        Exception: what `open_data` raised on this rank.
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
