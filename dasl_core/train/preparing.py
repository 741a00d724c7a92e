"""First phase of a run: decoding of images into the cache, which may take hours."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from threading import Event
from typing import TypeVar

from dasl_core.data.cache import DIRECTORY_VARIABLE, MAX_BYTES_VARIABLE
from dasl_core.data.cache_build import OnRead
from dasl_core.data.canvases import Canvases
from dasl_core.data.index import DatasetIndex
from dasl_core.distributed import gather_objects
from dasl_core.spec import ResolvedJobSpec
from dasl_core.train.data import damaged_images, open_sets, report_images
from dasl_core.train.interruption import Interrupted, Interruption
from dasl_core.train.progress import Progress
from dasl_core.train.reporter import Reporter
from dasl_core.vocabulary import TrainingOutcome

# Interval at which ranks exchange their progress.
_EXCHANGE_SECONDS = 1.0

T = TypeVar("T")


def open_images(
    spec: ResolvedJobSpec,
    index: DatasetIndex,
    evaluate_on: DatasetIndex | None,
    interruption: Interruption,
    cache: Path,
    evaluate_cache: Path | None,
    threads: int,
) -> dict[str, Canvases]:
    """Open the data sets to train and to evaluate on, by name, on all ranks.

    Args:
        cache, evaluate_cache: folders for the images of `index` and of `evaluate_on`; may be the same.
        threads: number of threads for later decoding.

    Raises:
        Interrupted: the user requested to stop.
    """
    interruption.reporter.phase("reading", f"Reading {len(index)} images of {spec.dataset}")
    open_data = partial(open_sets, spec, index, evaluate_on, cache, evaluate_cache, threads)
    return read_together(open_data, len(index) + len(evaluate_on or ()), interruption)


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


def prepare(
    spec: ResolvedJobSpec,
    index: DatasetIndex,
    reporter: Reporter,
    cache: Path,
    *,
    evaluate_on: DatasetIndex | None = None,
    evaluate_cache: Path | None = None,
) -> TrainingOutcome:
    """Decode the images of a spec's run into this machine's cache.

    Args:
        evaluate_cache: folder for the images of `evaluate_on`.

    Raises:
        ValueError: none of the images of a data set can be cached; the message says why.
    """
    interruption = Interruption(reporter, Progress(), None)
    try:
        sets = open_images(spec, index, evaluate_on, interruption, cache, evaluate_cache, threads=1)
    except Interrupted as stop:
        return stop.outcome
    damaged = {name: damaged_images(canvases, None) for name, canvases in sets.items()}
    report_images(sets, damaged, reporter, None)
    for canvases in sets.values():
        canvases.close()
    for name, canvases in sets.items():
        check_cached(name, canvases)
    return "succeeded"


def check_cached(name: str, canvases: Canvases) -> None:
    """Raise a ValueError that says why if no image of a data set is cached."""
    if canvases.num_cached:
        return
    unreadable = len(canvases.unreadable)
    reason = f"{unreadable} of {len(canvases.index)} cannot be read"
    if canvases.not_cached:
        reason = f"{canvases.not_cached}. Free disk space, or set {DIRECTORY_VARIABLE} or {MAX_BYTES_VARIABLE}"
    raise ValueError(f"none of the images of {name} could be cached: {reason}")
