"""Early stopping by a metric of the evaluations."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasl_core.data.index import DatasetIndex
from dasl_core.spec import JobSpec, ResolvedJobSpec, SpecError, Stop, resolve
from dasl_core.train.early_stop import early_stop
from tests.support.training_world import (
    Recorder,
    image_folder,
    ingest,
    recorded,
    resolved_from_checkpoint,
    run,
    tiny_spec,
)


def records(values: list[float], name: str = "knn_top1") -> list[dict[str, Any]]:
    return [
        {"step": 10 * epoch, "epoch": epoch, "metrics": {name: value}}
        for epoch, value in enumerate(values, start=1)
    ]


def stops(values: list[float], **settings: Any) -> bool:
    stop = Stop(**{"metric": "knn_top1"} | settings)
    return early_stop(stop, records(values, stop.metric)) is not None


def test_early_stop_waits_for_patience_evaluations_without_improvement() -> None:
    rising_then_flat = [0.1, 0.3, 0.2, 0.3, 0.25]
    assert [stops(rising_then_flat[:n], patience=3) for n in range(6)] == [False] * 5 + [True]
    assert stops([0.1, 0.11, 0.12], patience=2, min_delta=0.02)
    assert not stops([0.1, 0.11, 0.13], patience=2, min_delta=0.02)
    falling = [-0.5, -1.0, -1.5]
    assert not stops(falling, patience=1, metric="uniformity"), "smaller is better"
    assert stops(falling, patience=1, metric="effective_rank")


def test_early_stop_says_why_in_words() -> None:
    stop = early_stop(Stop(metric="knn_top1", patience=2), records([0.3, 0.5, 0.4, 0.45]))
    assert stop is not None
    message, data = stop
    assert message == (
        "The training ends at epoch 4: knn_top1 was 0.5 at epoch 2, and 2 evaluations have not improved it "
        "(train.stop)"
    )
    assert data == {"metric": "knn_top1", "best": 0.5, "best_epoch": 2, "newest": 0.45}


@given(st.lists(st.floats(0, 1), max_size=12), st.integers(1, 4), st.floats(0, 0.3))
def test_early_stop_is_patience_evaluations_after_the_last_improvement(
    values: list[float], patience: int, min_delta: float
) -> None:
    best, since = -1.0, 0
    for i, value in enumerate(values):
        since = 0 if i == 0 or value > best + min_delta else since + 1
        best = value if since == 0 else best
    stopped = stops(values, patience=patience, min_delta=min_delta)
    assert stopped == (since >= patience)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> DatasetIndex:
    return ingest(image_folder(tmp_path_factory.mktemp("stop") / "images", classes=2, per_class=12))


def stopping(
    index: DatasetIndex, stop: dict[str, Any] | None, frozen: int = 0, **evaluate: Any
) -> ResolvedJobSpec:
    """Return a spec of 12 epochs that ends after the third one, if `stop` is given."""
    train = {"batch_size": 8, "epochs": 12, "checkpoint_every_epochs": 3, "stop": stop}
    train["head_only_epochs"] = frozen
    evaluate = {"every_epochs": 1, **evaluate}
    return resolved_from_checkpoint(index, train=train, evaluate=evaluate)


STOP = {"metric": "effective_rank", "patience": 2, "min_delta": 1e6}


@pytest.mark.usefixtures("without_plots")
def test_stopped_run_succeeds_resumes_and_branches(index: DatasetIndex, tmp_path: Path) -> None:
    spec = stopping(index, STOP)
    whole = recorded(spec, index, tmp_path / "cache", tmp_path / "whole")
    ((step, final, is_final),) = whole.checkpoints
    ((kind, message, data),) = whole.events
    assert (kind, is_final, data["best_epoch"]) == ("stopped_early", True, 1)
    assert "2 evaluations have not improved it by more than 1e+06" in message
    assert len(whole.curve()) == step
    assert [e[1] for e in whole.evaluations if e[2] == "backbone"] == [1, 2, 3]
    assert (
        json.loads((final / "metrics.json").read_text())["verdict"]["verdict"] == "too_few_images"
    )
    assert whole.latest == whole.evaluations[-1][3] | {"evaluated_step": step}

    interrupted = Recorder(
        tmp_path / "one", lambda started: "cancel" if started == step - 1 else "run"
    )
    assert run(spec, index, tmp_path / "cache", interrupted) == "cancelled"
    rest = Recorder(tmp_path / "rest")
    outcome = run(spec, index, tmp_path / "cache", rest, interrupted.last_checkpoint)
    assert (outcome, rest.events) == ("succeeded", whole.events)
    assert [e[:3] for e in rest.evaluations] == [(step, 3, "backbone")]

    again = recorded(spec, index, tmp_path / "cache", tmp_path / "again", final)
    assert (again.curve(), again.checkpoints) == ([], [])
    assert again.evaluations == rest.evaluations, "their delivery is not known"

    longer = stopping(index, STOP | {"patience": 1})
    branch = recorded(longer, index, tmp_path / "cache", tmp_path / "branch", final, branch=True)
    assert [e[1] for e in branch.evaluations] == [4, 5], "it counts its own evaluations"


@pytest.mark.usefixtures("without_plots")
def test_early_stop_does_not_count_epochs_with_a_frozen_backbone(
    index: DatasetIndex, tmp_path: Path
) -> None:
    spec = stopping(index, STOP, frozen=1)
    reporter = recorded(spec, index, tmp_path / "cache", tmp_path / "out")
    ((_, _, data),) = reporter.events
    assert data["best_epoch"] == 2
    assert [e[1] for e in reporter.evaluations if e[2] == "backbone"] == [1, 2, 3, 4]


@pytest.mark.usefixtures("without_plots")
def test_final_evaluation_of_a_stopped_run_trains_the_probe(
    index: DatasetIndex, tmp_path: Path
) -> None:
    spec = stopping(index, STOP | {"patience": 1}, linear={"epochs": 1, "learning_rates": [0.1]})
    reporter = recorded(spec, index, tmp_path / "cache", tmp_path / "out")
    assert [e[1] for e in reporter.evaluations if e[2] == "backbone"] == [1, 2, 2]
    stored = json.loads((reporter.last_checkpoint / "metrics.json").read_text())["evaluations"]
    assert all(
        (a["step"], a["subject"]) != (b["step"], b["subject"]) for a, b in pairwise(stored)
    ), "an evaluation replaces that of its step"
    assert "linear_top1" in stored[-1]["metrics"]


@pytest.mark.parametrize(
    ("metric", "evaluate", "expected"),
    [
        ("loss", {}, "one of knn_top1, recall_at_1"),
        ("alignment", {}, "have a direction"),
        ("linear_top1", {"linear": True}, "have a direction"),
        ("nmi", {}, "one of knn_top1, recall_at_1"),
        ("recall_at_7", {}, "one of knn_top1, recall_at_1"),
        ("knn_top1", {"knn": None}, "one of recall_at_1"),
        ("knn_top1", {"holdout": {"by": "class", "fraction": 0.5}}, "one of recall_at_1"),
        ("effective_rank", {"holdout": None}, "null: nothing is held out"),
    ],
)
def test_metric_that_is_not_measured_is_refused_with_those_that_are(
    metric: str, evaluate: dict[str, Any], expected: str, index: DatasetIndex
) -> None:
    settings = tiny_spec(
        evaluate=evaluate,
        train={"epochs": 5, "stop": {"metric": metric, "patience": 1}},
        checkpoints={"best_by": metric},
    )
    with pytest.raises(SpecError) as caught:
        resolve(JobSpec.model_validate(settings), index.facts())
    problems = {problem.field: str(problem) for problem in caught.value.problems}
    assert problems.keys() == {"train.stop.metric", "checkpoints.best_by"}
    assert all(expected in text for text in problems.values())
