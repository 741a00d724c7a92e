"""Detection of trainings that wait for their images, with advice."""

from dataclasses import dataclass
from typing import Literal

from dasl_core.data.cache import DIRECTORY_VARIABLE, MAX_BYTES_VARIABLE
from dasl_core.data.loader import READERS
from dasl_core.train.timing import RecentTimes, Times

Cause = Literal["decoding", "storage", "copying", "views"]

# Shares of the time in which steps wait for images: above the first a training is held back, below the second
# it is so no longer.
WAITS, WAITS_NO_LONGER = 0.2, 0.1

# Share of their time in which the threads that read images use a core if nothing but cores holds them back: all of
# it, or where the cores also train, that in which steps wait.
BUSY = 0.6


@dataclass(frozen=True)
class Reading:
    """How this process reads its training images.

    Attributes:
        threads: that decode.
        decodes: whether images are decoded in every epoch.
        not_cached: why there is no cache, as a part of a sentence, where one was wanted.
        on_cpu: whether the cores also train.
    """

    threads: int
    decodes: bool
    not_cached: str | None
    on_cpu: bool


@dataclass(frozen=True)
class InputBound:
    """What holds a training back: a message to users with advice, and the data of the event."""

    cause: Cause
    message: str
    data: dict[str, float | int | str | None]


class InputWatch:
    """Judges the times of each report.

    A cause is reported once until steps wait less than `WAITS_NO_LONGER`. The first report is ignored: its first
    step waits for the first images in any case.
    """

    def __init__(self, reading: Reading, recent: RecentTimes | None = None) -> None:
        self.reading = reading
        self._recent = RecentTimes() if recent is None else recent
        self._is_first = True
        self._told: set[Cause] = set()

    def observe(self, times: Times) -> InputBound | None:
        """Judge a report; return what to tell, if anything."""
        if self._is_first:
            self._is_first = False
            return None
        self._recent.add(times)
        if not self._recent.is_full:
            return None
        total = self._recent.total()
        waits = waiting(total)
        if waits < WAITS_NO_LONGER:
            self._told.clear()
        if waits <= WAITS:
            return None
        cause = cause_of(total, self.reading)
        if cause in self._told:
            return None
        self._told.add(cause)
        return describe(cause, waits, self.reading)


def waiting(times: Times) -> float:
    """The share of the time, without that of evaluations, in which steps waited for images."""
    waited = times.seconds.get("data_wait", 0.0)
    return 0.0 if waited <= 0 else waited / _trained(times)


def _trained(times: Times) -> float:
    """Seconds without those of evaluations."""
    trained = times.wall - times.seconds.get("evaluation", 0.0)
    return max(trained, times.seconds.get("data_wait", 0.0))


def cause_of(times: Times, reading: Reading) -> Cause:
    """Why reading is slow, given that steps wait for it.

    Threads that are not busy wait for storage. Busy ones decode, or copy canvases from the cache; where the
    cores also train, the views may be what keeps them busy.
    """
    seconds = times.seconds.get("data_wait", 0.0) if reading.on_cpu else _trained(times)
    if times.worked < BUSY * seconds * (reading.threads if reading.decodes else READERS):
        return "storage"
    if reading.decodes:
        return "decoding"
    views, decode = (times.seconds.get(each, 0.0) for each in ("views", "decode"))
    return "views" if reading.on_cpu and views > decode else "copying"


def describe(cause: Cause, waits: float, reading: Reading) -> InputBound:
    """Tell what holds the training back, and what to do."""
    threads = "one thread decodes" if reading.threads == 1 else f"{reading.threads} threads decode"
    causes: dict[Cause, str] = {
        "decoding": f"{threads} them in every epoch. Raise resources.cpus_per_worker.",
        "storage": "their files are read slowly. Move the data set, or its cache "
        f"({DIRECTORY_VARIABLE}), to a faster disk.",
        "copying": f"they are copied from the image cache, by {READERS} threads. Lower "
        "backbone.image_size, whose canvases are up to twice as wide, or share a batch between more "
        "ranks (resources.workers).",
        "views": "the cores that read them also compute their views. Raise resources.cpus_per_worker, or "
        "train on a GPU (resources.gpus_per_worker).",
    }
    message = f"Steps wait for images in {waits:.0%} of the time: {causes[cause]}"
    if reading.not_cached is not None:
        message += (
            f" Images are decoded again because they cannot be cached ({reading.not_cached}): free disk "
            f"space, or set {DIRECTORY_VARIABLE} or {MAX_BYTES_VARIABLE}."
        )
    data: dict[str, float | int | str | None] = {
        "cause": cause,
        "data_wait": round(waits, 3),
        "threads": reading.threads,
        "not_cached": reading.not_cached,
    }
    return InputBound(cause, message, data)
