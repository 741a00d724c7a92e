"""The parts of a scenario, each with its share of the time."""

import importlib.util
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch.profiler import ProfilerActivity, profile

from benchmarks import own_run
from benchmarks.gpu import own, theirs
from benchmarks.gpu.own import Bench
from benchmarks.gpu.timing import Limit, in_turn, timed

# Steps of a regularizer alone, which takes microseconds.
_REPEATS = 50
_ROWS_OF_PROFILE = 30


@dataclass(frozen=True)
class Part:
    """A part of the measurements.

    Attributes:
        seconds: that it may take, of the whole's 8.5 minutes.
        needs: package without which it is skipped.
    """

    name: str
    seconds: float
    run: Callable[[Bench, Limit], dict[str, Any]]
    needs: str | None = None

    @property
    def skipped(self) -> str | None:
        """Why it cannot run; None if it can."""
        if self.needs and importlib.util.find_spec(self.needs) is None:
            return f"{self.needs} is not installed"
        return None


def steps(bench: Bench, limit: Limit) -> dict[str, Any]:
    """Time steps on views that are on the device, in turn: ours, with DAR, with SEC, the model alone, lightly's."""
    device = bench.device
    alone: dict[str, float] = {}
    with ExitStack() as stack:
        plain, with_dar, with_sec, bare = (
            stack.enter_context(trainer)
            for trainer in (
                bench.trainer(),
                bench.trainer(dar={}),
                bench.trainer(sec={}),
                bench.trainer(),
            )
        )
        views = own.synthetic_views(plain, device)
        runs = {
            "step": own.whole_step(plain, views, device),
            "step with DAR": own.whole_step(with_dar, views, device),
            "step with SEC": own.whole_step(with_sec, views, device),
            "model alone": own.model_alone(bare, views),
        }
        if importlib.util.find_spec("lightly"):
            runs["step of lightly"] = partial(theirs.step(bench), views)
        seconds = in_turn(runs, device, rounds=bench.rounds, block=bench.block, limit=limit)
        for name, trainer in (("DAR", with_dar), ("SEC", with_sec)):
            run = own.regularizer_alone(trainer, views)
            alone |= in_turn({name: run}, device, rounds=3, block=_REPEATS, limit=limit)
    result: dict[str, Any] = {name: own.speed(bench, each) for name, each in seconds.items()}
    for name, each in alone.items():
        result[name] = {
            "alone_ms": 1000 * each,
            "share_of_step": each / seconds["step"] if "step" in seconds else None,
        }
        if {"step", f"step with {name}"} <= seconds.keys():
            difference = seconds[f"step with {name}"] - seconds["step"]
            result[name]["difference_ms"] = 1000 * difference
            result[name]["difference_share"] = difference / seconds["step"]
    return result


def profiled(bench: Bench, limit: Limit) -> dict[str, Any]:
    """Profile one step with the wait for its batch, after others."""
    on_gpu = bench.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with (
        bench.trainer() as trainer,
        closing(own_run.batches(trainer, bench.warmup + 2)) as batches,
    ):
        for _ in range(bench.warmup + 1):  # so that the step is not one that reports
            if not limit.allows():
                limit.cut.append("not enough time to warm up")
                return {}
            trainer.step(next(batches))
        with profile(activities=activities) as profiler:
            seconds = timed(lambda: trainer.step(next(batches)), bench.device)
    by = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    averages = profiler.key_averages()
    table = averages.table(sort_by=by, row_limit=_ROWS_OF_PROFILE, max_name_column_width=60)
    return {"step_ms": round(1000 * seconds, 3), "table": table}


PARTS = (
    Part("train", 50, own.train),
    Part("inputs", 20, own.inputs),
    Part("steps", 75, steps),
    Part("lightly", 50, theirs.train, needs="lightly"),
    Part("profile", 20, profiled),
)
