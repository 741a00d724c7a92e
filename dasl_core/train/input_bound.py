"""Detection of input-bound training, with advice."""

from dataclasses import dataclass
from typing import Any, Literal

from dasl_core.data.cache import DIRECTORY_VARIABLE, MAX_BYTES_VARIABLE
from dasl_core.data.loader import READERS
from dasl_core.train.timing import RecentTimes, Times

Cause = Literal["decoding", "storage", "copying", "views"]

# Shares of the time in which steps wait for images: input-bound above the first, recovered below the second.
WAITS, WAITS_NO_LONGER = 0.2, 0.1

# Core use of the reading threads, as a share of their time, from which cores are the bottleneck: of all time, or of
# the time in which steps wait where the cores also train.
BUSY = 0.6


@dataclass(frozen=True)
class Reading:
    """How this process reads its training images.

    Attributes:
        threads: number of decoding threads.
        decodes: whether images are decoded in every epoch.
        not_cached: why a requested cache is missing, as part of a sentence.
        on_cpu: whether the cores also train.
    """

    threads: int
    decodes: bool
    not_cached: str | None
    on_cpu: bool


class InputWatch:
    """Checks the times of each report.

    A cause is reported once until steps wait less than `WAITS_NO_LONGER`. The first report is ignored, because its
    first step always waits.
    """

    def __init__(self, reading: Reading, recent: RecentTimes | None = None) -> None:
        self.reading = reading
        self._recent = RecentTimes() if recent is None else recent
        self._is_first = True
        self._told: set[Cause] = set()

    def observe(self, times: Times) -> tuple[str, dict[str, Any]] | None:
        """Check a report; if the training is input-bound, return message and data of the event."""
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
        cause = find_cause(total, self.reading)
        if cause in self._told:
            return None
        self._told.add(cause)
        return describe(cause, waits, self.reading)


def waiting(times: Times) -> float:
    """Return the share of the training time, without evaluations, in which steps waited for images."""
    waited = times.seconds.get("data_wait", 0.0)
    return 0.0 if waited <= 0 else waited / _trained(times)


def _trained(times: Times) -> float:
    """Return the seconds without evaluations."""
    trained = times.wall - times.seconds.get("evaluation", 0.0)
    return max(trained, times.seconds.get("data_wait", 0.0))


def find_cause(times: Times, reading: Reading) -> Cause:
    """Find why reading is slow.

    Idle threads wait for storage. Busy ones decode, or copy canvases from the cache; where the cores also train,
    rendering views may keep them busy.
    """
    seconds = times.seconds.get("data_wait", 0.0) if reading.on_cpu else _trained(times)
    if times.worked < BUSY * seconds * (reading.threads if reading.decodes else READERS):
        return "storage"
    if reading.decodes:
        return "decoding"
    views, decode = (times.seconds.get(name, 0.0) for name in ("views", "decode"))
    return "views" if reading.on_cpu and views > decode else "copying"


def describe(cause: Cause, waits: float, reading: Reading) -> tuple[str, dict[str, Any]]:
    """Return a message with advice on a cause, and data."""
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
    return message, {
        "cause": cause,
        "data_wait": round(waits, 3),
        "threads": reading.threads,
        "not_cached": reading.not_cached,
    }
