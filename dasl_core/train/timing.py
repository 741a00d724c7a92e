"""Time measurement of training activities."""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Literal, get_args

import torch

Activity = Literal[
    "data_wait",
    "decode",
    "copy",
    "views",
    "forward",
    "backward",
    "communication",
    "optimizer",
    "evaluation",
]
ACTIVITIES: tuple[Activity, ...] = get_args(Activity)

# On a GPU these are host times; the others are device times.
_ON_HOST: frozenset[Activity] = frozenset({"data_wait", "decode", "evaluation"})


@dataclass(frozen=True)
class Times:
    """Time between two reports.

    Attributes:
        wall: seconds between them.
        seconds: seconds of each activity. They overlap, and those of threads add up, so the sum may differ from `wall`.
        worked: processor time of threads that read images.
    """

    wall: float
    seconds: dict[Activity, float]
    worked: float = 0.0

    def shares(self) -> dict[Activity, float]:
        """Return each activity's share of the wall-clock time."""
        return {name: self.seconds.get(name, 0.0) / self.wall for name in ACTIVITIES}

    def __add__(self, other: "Times") -> "Times":
        """Add two times."""
        seconds = {
            name: self.seconds.get(name, 0.0) + other.seconds.get(name, 0.0) for name in ACTIVITIES
        }
        return Times(self.wall + other.wall, seconds, self.worked + other.worked)


class RecentTimes:
    """The newest reports over a representative time: at least `reports` of them, and at least `seconds` in total."""

    def __init__(self, reports: int = 10, seconds: float = 30.0) -> None:
        self.reports, self.seconds = reports, seconds
        self._kept: deque[Times] = deque()

    def add(self, times: Times) -> None:
        """Add the newest report, and drop old ones."""
        self._kept.append(times)
        while len(self._kept) > self.reports and self._wall(1) >= self.seconds:
            self._kept.popleft()

    @property
    def is_full(self) -> bool:
        """Whether there are enough reports."""
        return len(self._kept) >= self.reports and self._wall() >= self.seconds

    def total(self) -> Times:
        """The sum of the reports."""
        return sum(self._kept, start=Times(0.0, {}))

    def _wall(self, first: int = 0) -> float:
        return sum(times.wall for times in islice(self._kept, first, None))


class StepTimer:
    """Measures the time of activities between two reports.

    A GPU is measured by events in its streams, without waiting: they are read at the first report after the device has
    reached them.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._threads: dict[Activity, float] = defaultdict(float)
        self._spans: dict[Activity, list[tuple[float, float]]] = defaultdict(list)
        self._marks: list[tuple[Activity, torch.cuda.Event, torch.cuda.Event]] = []
        self._begin_report()

    @contextmanager
    def span(self, activity: Activity) -> Generator[None, None, None]:
        """Context manager that measures an activity."""
        end = self.begin(activity)
        try:
            yield
        finally:
            end()

    def begin(self, activity: Activity) -> Callable[[], None]:
        """Start measuring an activity; the result ends it, possibly in another thread or, on a GPU, another stream."""
        if self.device.type == "cuda" and activity not in _ON_HOST:
            first = self._mark()
            return lambda: self._marks.append((activity, first, self._mark()))
        started = time.perf_counter()
        return lambda: self._spans[activity].append((started, time.perf_counter()))

    def collective(self, device: torch.device) -> AbstractContextManager[None]:
        """Context manager that measures an exchange of tensors between ranks on a device.

        Exchanges between the hosts of GPUs do not count, because the GPUs continue.
        """
        if device.type != self.device.type:
            return nullcontext()
        return self.span("communication")

    def add(self, activity: Activity, seconds: float, worked: float) -> None:
        """Count time that other threads spent on an activity, and their processor time."""
        self._threads[activity] += seconds
        self._worked += worked

    def report(self) -> Times:
        """Return the times since the last report, and reset them."""
        spans, self._spans = self._spans, defaultdict(list)
        seconds, self._threads = self._threads, defaultdict(float)
        for activity, intervals in spans.items():
            seconds[activity] += covered(intervals)
        for activity, of_device in self._read_marks().items():
            seconds[activity] += of_device
        wall = max(time.perf_counter() - self._since, 1e-9)
        times = Times(wall, dict(seconds), self._worked)
        self._begin_report()
        return times

    def _begin_report(self) -> None:
        self._since, self._worked = time.perf_counter(), 0.0
        self._origin = self._mark() if self.device.type == "cuda" else None

    def _mark(self) -> torch.cuda.Event:
        stream = torch.cuda.current_stream(self.device)
        event = torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def _read_marks(self) -> dict[Activity, float]:
        """Read the device times. Work that the device has not finished counts in the next report."""
        seconds: dict[Activity, float] = defaultdict(float)
        exchanges: list[tuple[float, float]] = []
        pending: list[tuple[Activity, torch.cuda.Event, torch.cuda.Event]] = []
        for activity, begin, end in self._marks:
            if not end.query():
                pending.append((activity, begin, end))
            elif activity == "communication":
                assert self._origin is not None
                exchanges.append((self._origin.elapsed_time(begin), self._origin.elapsed_time(end)))
            else:
                seconds[activity] += begin.elapsed_time(end) / 1000
        self._marks = pending
        seconds["communication"] = covered(exchanges) / 1000
        return seconds


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of intervals (begin, end)."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total
