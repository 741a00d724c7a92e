"""First phase of a run: decoding of images into the cache."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from dasl_core.data.cache import DIRECTORY_VARIABLE, MAX_BYTES_VARIABLE
from dasl_core.data.canvases import Canvases
from dasl_core.data.index import DatasetIndex
from dasl_core.data.unreadable import damaged_event
from dasl_core.spec import ResolvedJobSpec
from dasl_core.train.data import damaged_images, open_sets, report_cache
from dasl_core.train.interruption import Interrupted, Interruption
from dasl_core.train.progress import Progress
from dasl_core.train.reading import read_together
from dasl_core.train.reporter import Reporter
from dasl_core.vocabulary import TrainingOutcome


def open_images(
    spec: ResolvedJobSpec,
    index: DatasetIndex,
    evaluate_on: DatasetIndex | None,
    interruption: Interruption,
    *,
    cache: Path,
    evaluate_cache: Path | None,
    threads: int,
) -> dict[str, Canvases]:
    """Open the data sets of a run, by name, on all ranks; arguments as for `pretrain`.

    Raises:
        Interrupted: the user requested to stop.
    """
    interruption.reporter.phase("reading", f"Reading {len(index)} images of {spec.dataset}")
    open_data = partial(
        open_sets,
        spec,
        index,
        evaluate_on,
        cache=cache,
        evaluate_cache=evaluate_cache,
        threads=threads,
    )
    images = len(index) + len(evaluate_on or ())
    return read_together(lambda on_read: open_data(on_read=on_read), images, interruption)


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
    try:
        sets = open_images(
            spec,
            index,
            evaluate_on,
            Interruption(reporter, Progress(), None),
            cache=cache,
            evaluate_cache=evaluate_cache,
            threads=1,  # for later reading
        )
    except Interrupted as stop:
        return stop.outcome
    for name, canvases in sets.items():
        if damaged := damaged_images(canvases, None):
            reporter.event("images_damaged", *damaged_event(name, canvases.index, damaged))
    report_cache(sets, reporter, None)
    for canvases in sets.values():
        canvases.close()
    for name, canvases in sets.items():
        check_cached(name, canvases)
    return "succeeded"


def check_cached(name: str, canvases: Canvases) -> None:
    """Check that images of a data set are cached.

    Raises:
        ValueError: none is; the message says why.
    """
    if canvases.num_cached:
        return
    unreadable = len(canvases.unreadable)
    reason = f"{unreadable} of {len(canvases.index)} cannot be read"
    if canvases.not_cached:
        reason = f"{canvases.not_cached}. Free disk space, or set {DIRECTORY_VARIABLE} or {MAX_BYTES_VARIABLE}"
    raise ValueError(f"none of the images of {name} could be cached: {reason}")
