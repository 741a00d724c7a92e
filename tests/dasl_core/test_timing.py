"""Where the time goes: measured with a clock that the tests set."""

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dasl_core.distributed import all_ranks, collectives_timed, gather, rank
from dasl_core.train import timing
from dasl_core.train.data_parallel import wrap_ddp
from dasl_core.train.timing import ACTIVITIES, RecentTimes, StepTimer, Times, covered
from tests.support.gloo_pool import GlooPool

CPU = torch.device("cpu")
INTERVALS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=8)


@given(INTERVALS)
def test_time_that_overlaps_counts_once(spans: list[tuple[int, int]]) -> None:
    intervals = [(float(begin), float(begin + length)) for begin, length in spans]
    seconds = {at for begin, length in spans for at in range(begin, begin + length)}
    assert covered(intervals) == len(seconds)


@dataclass
class Clock:
    """Replaces the module `time`."""

    now: float = 0.0

    def perf_counter(self) -> float:
        return self.now


def test_report_has_the_shares_since_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(timing, "time", clock)
    timer = StepTimer(CPU)
    with timer.span("forward"):
        clock.now = 2.0
        end = timer.begin("communication")
        with timer.collective(CPU):
            clock.now = 3.0
        clock.now = 4.0
        end()
    timer.add("decode", 6.0, 1.5)
    timer.add("decode", 4.0, 3.0)
    clock.now = 8.0
    times = timer.report()
    assert (times.wall, times.worked) == (8.0, 4.5)
    known = {"forward": 0.5, "communication": 0.25, "decode": 1.25}
    assert times.shares() == {activity: known.get(activity, 0.0) for activity in ACTIVITIES}
    clock.now = 9.0
    times = timer.report()
    assert (times.wall, times.worked) == (1.0, 0.0)
    assert not any(times.shares().values())


@given(st.lists(st.floats(0.01, 20), max_size=40), st.integers(1, 6), st.floats(0, 40))
def test_recent_times_are_the_fewest_that_are_enough(
    walls: list[float], reports: int, seconds: float
) -> None:
    recent = RecentTimes(reports, seconds)
    for wall in walls:
        recent.add(Times(wall, {"views": wall / 2}, wall / 4))
    enough = [
        part
        for part in (walls[-count:] for count in range(reports, len(walls) + 1))
        if sum(part) >= seconds
    ]
    kept = enough[0] if enough else walls
    total = recent.total()
    assert recent.is_full == bool(enough)
    assert math.isclose(total.wall, sum(kept), abs_tol=1e-9)
    assert math.isclose(total.seconds.get("views", 0.0), total.wall / 2, abs_tol=1e-9)
    assert math.isclose(total.worked, total.wall / 4, abs_tol=1e-9)


def exchange_timed() -> float:
    timer = StepTimer(CPU)
    own = torch.ones(2, 3, requires_grad=True)
    with collectives_timed(timer.collective):
        gathered = gather(own, all_ranks())
        forward = timer.report().seconds["communication"]
        gathered.sum().backward()
        backward = timer.report().seconds["communication"]
    gather(own.detach(), all_ranks())
    return min(forward, backward) if not timer.report().seconds["communication"] else -1.0


def test_collectives_count_forward_and_backward(pool: GlooPool) -> None:
    assert all(seconds > 0 for seconds in pool.call(2, exchange_timed))


def gradients_averaged(scale: float) -> tuple[list[float], float]:
    timer = StepTimer(CPU)
    torch.manual_seed(0)
    model = wrap_ddp(nn.Linear(3, 1), timer)  # type: ignore[arg-type]
    timer.report()
    model(torch.full((2, 3), scale * (rank() + 1))).sum().backward()
    slopes = next(model.parameters()).grad
    assert slopes is not None
    return slopes.flatten().tolist(), timer.report().seconds["communication"]


def test_exchange_of_gradients_is_timed_and_averages(pool: GlooPool) -> None:
    for slopes, seconds in pool.call(2, gradients_averaged, 0.5):
        assert slopes == [1.5, 1.5, 1.5], "of 2 images of 0.5, and of 2 images of 1"
        assert seconds > 0
