"""The alarm for trainings that wait for their images, on made-up times."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dasl_core.data.canvases import Canvases
from dasl_core.data.index import DatasetIndex
from dasl_core.data.loader import READERS
from dasl_core.train.data import TrainingData
from dasl_core.train.input_bound import (
    WAITS,
    WAITS_NO_LONGER,
    Cause,
    InputWatch,
    Reading,
    find_cause,
    waiting,
)
from dasl_core.train.progress import Progress, RunLength
from dasl_core.train.step_metrics import StepMetrics
from dasl_core.train.timing import RecentTimes, StepTimer, Times
from tests.support.training_world import Recorder, resolved

CPU = torch.device("cpu")
DECODES = Reading(threads=4, decodes=True, not_cached=None, on_cpu=False)
CACHED = replace(DECODES, decodes=False)


def report(waits: float, *, busy: float = 4.0, **seconds: float) -> Times:
    """Ten seconds in which steps waited for this share; the threads that read used `busy` cores."""
    known = {"data_wait": 10 * waits, **seconds}
    return Times(10.0, known, 10 * busy)  # type: ignore[arg-type]


def told(watch: InputWatch, *reports: Times) -> list[tuple[str, dict[str, Any]]]:
    return [bound for each in reports if (bound := watch.observe(each)) is not None]


def watch_of(reading: Reading = DECODES, reports: int = 1) -> InputWatch:
    watch = InputWatch(reading, RecentTimes(reports, seconds=0))
    assert watch.observe(report(1.0)) is None, "the first step waits in any case"
    return watch


def test_cause_is_told_once_until_steps_wait_no_longer() -> None:
    watch = watch_of()
    first, between, low = report(0.5), report(0.15), report(0.05)
    assert told(watch, between) == []
    assert len(told(watch, first, first, between, first)) == 1
    assert len(told(watch, low, first)) == 1


def test_another_cause_is_told_too() -> None:
    causes = [data["cause"] for _, data in told(watch_of(), report(0.5), report(0.5, busy=0.1))]
    assert causes == ["decoding", "storage"]


def test_nothing_is_told_before_enough_reports() -> None:
    watch = watch_of(reports=3)
    assert told(watch, report(0.9), report(0.9)) == []
    assert len(told(watch, report(0.9))) == 1


@given(st.lists(st.floats(0, 1), max_size=30))
def test_telling_follows_the_two_limits(shares: list[float]) -> None:
    watch, armed = watch_of(), True
    for share in shares:
        bound = watch.observe(report(share))
        waits = waiting(report(share))
        armed = armed or waits < WAITS_NO_LONGER
        assert (bound is not None) == (armed and waits > WAITS)
        armed = armed and bound is None


def test_evaluations_are_no_training() -> None:
    assert waiting(report(0.1, evaluation=8.0)) == 0.5
    assert waiting(report(0.0)) == 0.0


@pytest.mark.parametrize(
    ("reading", "times", "cause", "advice"),
    [
        (DECODES, report(0.5), "decoding", "4 threads .* Raise resources.cpus_per_worker"),
        (
            DECODES,
            report(0.5, busy=1),
            "storage",
            r"or its cache \(DASL_CACHE_DIR\), to a faster disk",
        ),
        (CACHED, report(0.5, busy=READERS), "copying", "Lower backbone.image_size"),
        (CACHED, report(0.5, busy=0.5), "storage", "files are read slowly"),
        # Evaluations read other images.
        (DECODES, report(0.25, busy=1.5, evaluation=5.0), "decoding", "4 threads"),
        # Threads that share their cores with the training read while it waits.
        (replace(DECODES, on_cpu=True), report(0.5, busy=1.5), "decoding", "4 threads"),
        (replace(DECODES, on_cpu=True), report(0.5, busy=1.0), "storage", "files are read slowly"),
        (
            replace(CACHED, on_cpu=True),
            report(0.5, busy=READERS, views=6.0, decode=5.0),
            "views",
            "Raise resources.cpus_per_worker, or train on a GPU",
        ),
    ],
)
def test_advice_fits_the_cause(reading: Reading, times: Times, cause: Cause, advice: str) -> None:
    assert find_cause(times, reading) == cause
    ((message, data),) = told(watch_of(reading), times)
    assert re.search(advice, message)
    waits = waiting(times)
    assert waits == 0.5
    assert data == {"cause": cause, "data_wait": waits, "threads": 4, "not_cached": None}


def test_missing_cache_is_named() -> None:
    watch = watch_of(replace(DECODES, threads=1, not_cached="no room"))
    ((message, _),) = told(watch, report(0.25))
    assert message == (
        "Steps wait for images in 25% of the time: one thread decodes them in every epoch. Raise "
        "resources.cpus_per_worker. Images are decoded again because they cannot be cached (no room): free disk "
        "space, or set DASL_CACHE_DIR or DASL_CACHE_MAX_BYTES."
    )


class Timer(StepTimer):
    """Reports times that a test has set."""

    times = Times(1.0, {})

    def report(self) -> Times:
        return self.times


def test_run_reports_its_times_and_the_event(tmp_path: Path) -> None:
    reporter, progress, timer = Recorder(tmp_path), Progress(), Timer(CPU)
    watch = watch_of()
    metrics = StepMetrics(RunLength(1, 4, 8), progress, reporter, CPU, "ignore", timer, watch)
    metrics.report_times()
    assert reporter.points == [], "no step to report"
    for timer.times in (report(0.1, views=2.0), report(0.7, views=2.0)):
        progress.step += 1
        metrics.add({"loss": torch.tensor(1.0)}, torch.ones(2, 4, 3), spread=False)
        metrics.report()
    assert [point["values"]["time_data_wait"] for point in reporter.points] == [0.1, 0.7]
    times = reporter.progresses[-1]["times"]
    assert (times["data_wait"], times["views"], times["communication"]) == (0.4, 0.2, 0.0)
    assert [(type, data["cause"]) for type, _, data in reporter.events] == [
        ("input_bound", "decoding")
    ]
    timer.times = Times(30.0, {"evaluation": 30.0})
    metrics.report_times()
    last = reporter.points[-1]["values"]
    assert (last["time_evaluation"], last["time_data_wait"]) == (0.75, 0.175)


def test_how_images_are_read_is_known(pictures: DatasetIndex, cache: Path, tmp_path: Path) -> None:
    spec, nowhere = resolved(pictures), tmp_path / "file"
    nowhere.write_text("not a folder", encoding="utf-8")
    for folder, decodes in ((cache, False), (nowhere, True)):
        canvases = Canvases(pictures, 16, 3, cache=folder, threads=3)
        sets = {"pictures": canvases}
        data = TrainingData.select(spec, sets, control=None)
        reading = data.reading(3, CPU)
        assert (reading.threads, reading.decodes, reading.on_cpu) == (3, decodes, True)
        assert (reading.not_cached is not None) == decodes
        data.close()
