"""Where the time of a training goes, and how much of the machine it uses."""

import resource
import sys
import time
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, get_args

import torch

from dasl_core.machine import usable_cores

Activity = Literal[
    "data_wait",
    "decode",
    "copy",
    "views",
    "optimizer",
    "evaluation",
]
ACTIVITIES: tuple[Activity, ...] = get_args(Activity)

# On a GPU these are times of the device, the others are times of the host.
_ON_DEVICE: frozenset[Activity] = frozenset({"copy", "views", "optimizer"})

_STATUS = Path("/proc/self/statm")


class StepTimer:
    """Measures activities and the use of the machine between two reports.

    On a GPU, events in its streams are the marks, which no step waits for: they are read at a report, which
    waits for the device anyway.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._seconds: dict[Activity, float] = defaultdict(float)
        self._marks: list[tuple[Activity, torch.cuda.Event, torch.cuda.Event]] = []
        self._since, self._cpu_since = time.perf_counter(), time.process_time()

    @contextmanager
    def span(self, activity: Activity) -> Generator[None, None, None]:
        """Context whose time counts as that of an activity."""
        if self.device.type == "cuda" and activity in _ON_DEVICE:
            stream = torch.cuda.current_stream(self.device)
            begin = stream.record_event(torch.cuda.Event(enable_timing=True))
            try:
                yield
            finally:
                end = stream.record_event(torch.cuda.Event(enable_timing=True))
                self._marks.append((activity, begin, end))
            return
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[activity] += time.perf_counter() - started

    def add(self, activity: Activity, seconds: float) -> None:
        """Count time that another thread spent on an activity."""
        self._seconds[activity] += seconds

    def report(self) -> dict[str, float]:
        """Return the metrics since the last report, always the same ones, and reset them.

        ``time_<activity>``: its share of the wall-clock time. Activities overlap, and threads add up, so
        the sum need not be 1. ``cpu_utilization``: share of the cores that the process may use;
        ``memory``: of the process, in bytes; ``gpu_utilization`` and ``gpu_memory``: share of the time in
        which the GPU was at work, and the largest memory of tensors, in bytes. NaN where unknown.
        """
        self._read_marks()
        now, cpu = time.perf_counter(), time.process_time()
        seconds, self._seconds = self._seconds, defaultdict(float)
        wall = max(now - self._since, 1e-9)
        busy = (cpu - self._cpu_since) / wall / usable_cores()
        self._since, self._cpu_since = now, cpu
        shares = {f"time_{activity}": seconds[activity] / wall for activity in ACTIVITIES}
        return shares | {"cpu_utilization": busy, "memory": resident_memory()} | self._gpu()

    def _read_marks(self) -> None:
        """Count the spans that the device has done; the others count in the next report."""
        pending = []
        for activity, begin, end in self._marks:
            if end.query():
                self._seconds[activity] += begin.elapsed_time(end) / 1000
            else:
                pending.append((activity, begin, end))
        self._marks = pending

    def _gpu(self) -> dict[str, float]:
        if self.device.type != "cuda":
            return {}
        memory = torch.cuda.max_memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        try:
            utilization = torch.cuda.utilization(self.device) / 100
        except (ImportError, RuntimeError):  # without NVIDIA's management library
            utilization = float("nan")
        return {"gpu_utilization": utilization, "gpu_memory": float(memory)}


def resident_memory() -> float:
    """Bytes of memory that this process occupies; where only its peak is known, the peak."""
    try:
        pages = int(_STATUS.read_text(encoding="ascii").split()[1])
        return float(pages * resource.getpagesize())
    except (OSError, ValueError, IndexError):  # not Linux
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return float(peak if sys.platform == "darwin" else peak * 1024)
