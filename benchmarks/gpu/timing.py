"""Time limits of parts, and times of steps that take turns."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from benchmarks.memory import synchronize


@dataclass
class Limit:
    """The time of one part.

    Attributes:
        seconds: from now.
        cut: what was left out because the time was over.
    """

    seconds: float
    cut: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)

    @property
    def left(self) -> float:
        """Seconds that are left; negative afterwards."""
        return self.began + self.seconds - time.perf_counter()

    def allows(self, seconds: float = 0.0) -> bool:
        """Whether so much time is left."""
        return self.left > seconds


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of some work, including its last kernel."""
    synchronize(device)
    began = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - began


def median_ms(
    work: Callable[[], object], device: torch.device, repeats: int, limit: Limit, name: str
) -> float | None:
    """Return the median milliseconds of some work, after once that does not count; None: no time is left."""
    seconds: list[float] = []
    for _ in range(repeats + 1):
        if not limit.allows(seconds[-1] if seconds else 0.0):
            limit.cut.append(f"{name}: {max(0, len(seconds) - 1)} of {repeats} repeats")
            break
        seconds.append(timed(work, device))
    return 1000 * statistics.median(seconds[1:]) if len(seconds) > 1 else None


def in_turn(
    steps: Mapping[str, Callable[[], None]],
    device: torch.device,
    *,
    rounds: int,
    block: int,
    limit: Limit,
) -> dict[str, float]:
    """Return the median seconds of each step; they take turns in blocks.

    The host waits for the device only between blocks: within them it runs ahead, as in training. One block
    of each step does not count: it selects kernels, and allocates memory.

    Returns:
        Nothing for steps for which there was no time.
    """
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds + 1):
        for name, step in steps.items():
            last = seconds[name][-1] * block if seconds[name] else 0.0
            if not limit.allows(last):
                limit.cut.append(f"{name}: {max(0, len(seconds[name]) - 1)} of {rounds} rounds")
                continue

            def run(step: Callable[[], None] = step) -> None:
                for _ in range(block):
                    step()

            seconds[name].append(timed(run, device) / block)
    return {name: statistics.median(each[1:]) for name, each in seconds.items() if len(each) > 1}
