"""Building of decoded images into a cache: by one process of a machine, while the others wait."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

from dasl_core.data.bounded_map import AHEAD_PER_THREAD, bounded_map
from dasl_core.data.decode import is_transient
from dasl_core.data.drawing import Drawer
from dasl_core.data.unreadable import too_many
from dasl_core.locks import locked
from dasl_core.machine import decoding_budget, usable_cores

_REPORT_SECONDS = 0.5
_WAIT_SECONDS = 0.2

OnRead = Callable[[int], None]
"""Called every few images with the number of images read; an exception stops the reading."""


class CacheBuild(ABC):
    """A build with all cores, which the next process continues after a kill.

    Beside the files of the images, `BASE.lock` is held by the process that builds, and `BASE.progress` has the number
    of images that it has read.

    Attributes:
        unreadable: images that cannot be read, with the reasons.
    """

    def __init__(self, drawer: Drawer, base: Path, on_read: OnRead) -> None:
        self._drawer, self._on_read = drawer, on_read
        self._lock, self._progress = base.with_suffix(".lock"), base.with_suffix(".progress")
        # All cores, since the other ranks wait.
        self._pool = ThreadPoolExecutor(usable_cores(), thread_name_prefix="decode")
        self._report_at, self._seen = 0.0, 0
        self.unreadable: dict[int, str] = {}

    def run(self) -> bool:
        """Build what is missing, retry failures; false if too few images can be read, an OSError on a failed write."""
        with locked(self._lock, self._wait), self._pool:
            if not self._is_complete():
                missing = self._drawer.missing(lambda: self._on_read(0))
                if too_many(len(missing), len(self._drawer.index)):
                    return False
            self._build()
            self._progress.unlink(missing_ok=True)
            self._retry()
        return True

    @abstractmethod
    def _is_complete(self) -> bool:
        """Whether a process has completed the build."""

    @abstractmethod
    def _build(self) -> None:
        """Build what is missing, and set `unreadable`."""

    @abstractmethod
    def _record(self, position: int) -> bytes | str:
        """Draw an image for the cache; return its record, or why it cannot be read."""

    def _records(self, positions: Sequence[int]) -> Generator[bytes | str, None, None]:
        """Yield the result of `_record` for each image; draws in parallel."""
        return bounded_map(
            self._pool,
            self._record,
            positions,
            AHEAD_PER_THREAD * usable_cores(),
            cost=self._drawer.memory,
            budget=decoding_budget(),
        )

    def _retry(self) -> bool:
        """Retry images that failed for transient reasons; return whether there are any."""
        listed = [position for position, why in self.unreadable.items() if is_transient(why)]
        with closing(self._records(listed)) as records:
            for position, record in zip(listed, records, strict=True):
                if isinstance(record, str):
                    self.unreadable[position] = record
                else:
                    del self.unreadable[position]
        return bool(listed)

    def _report(self, images: int) -> None:
        """Report the number of images read, to this process and those that wait."""
        if time.monotonic() >= self._report_at:
            # Not flushed to disk: only running processes read it.
            self._progress.write_text(f"{images:020}", encoding="ascii")
            self._on_read(images)
            self._report_at = time.monotonic() + _REPORT_SECONDS

    def _wait(self) -> None:
        with suppress(FileNotFoundError, ValueError):  # not started, or being written
            self._seen = int(self._progress.read_text(encoding="ascii"))
        self._on_read(self._seen)
        time.sleep(_WAIT_SECONDS)
