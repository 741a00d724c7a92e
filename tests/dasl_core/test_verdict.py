"""The verdict at the end of a training."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasl_core.verdict import Verdict, judge
from tests.support.training_world import Recorder, image_folder, ingest, resolved, run


def evaluations(
    start: float, *values: float, name: str = "knn_top1", raw: float | None = None
) -> list[dict[str, Any]]:
    """Return evaluations of a metric before training and after each of the epochs 1, 2, ..."""
    records = [] if raw is None else [record("raw", 0, {name: raw})]
    records.append(record("untrained", 0, {name: start}))
    return records + [record("backbone", i, {name: x}) for i, x in enumerate(values, start=1)]


def record(subject: str, epoch: int, metrics: dict[str, float]) -> dict[str, Any]:
    return {"step": 10 * epoch, "epoch": float(epoch), "subject": subject, "metrics": metrics}


def judged(records: list[dict[str, Any]], *collapsed: str, held_out: int = 10_000) -> Verdict:
    verdict = judge(records, collapsed, held_out)
    assert verdict is not None
    return verdict


@pytest.mark.parametrize(
    ("values", "kind", "words"),
    [
        ((0.3, 0.5, 0.6, 0.6, 0.6), "healthy", "healthy: knn_top1 0.6, 0.2 at the start"),
        (
            (0.3, 0.4, 0.5, 0.6),
            "still_rising",
            "train longer. In the last quarter knn_top1 rose from 0.5",
        ),
        (
            (0.3, 0.2, 0.2, 0.2),
            "no_better",
            "no better than the start: knn_top1 0.2, 0.2 at the start",
        ),
        ((0.1, 0.1, 0.1, 0.1), "no_better", "no better than the start"),
        ((0.5, 0.6, 0.4, 0.4), "falling", "knn_top1 was 0.6 at epoch 2 and is 0.4 now"),
        ((0.6,), "healthy", "healthy"),
    ],
)
def test_verdict_of_an_accuracy(values: tuple[float, ...], kind: str, words: str) -> None:
    verdict = judged(evaluations(0.2, *values))
    assert verdict.verdict == kind
    assert words in verdict.message
    assert verdict.metrics["knn_top1_at_start"] == 0.2
    assert verdict.metrics["knn_top1"] == values[-1]


@pytest.mark.parametrize("values", [(0.0, 1.0), (0.0, 0.5, 1.0)])
def test_few_images_have_no_verdict(values: tuple[float, ...]) -> None:
    assert judge(evaluations(0.0, *values), [], 29) is None
    assert judge(evaluations(0.0, *values), [], 30) is not None


def test_error_of_recall_is_that_of_its_queries() -> None:
    records = evaluations(0.5, 0.55, name="recall_at_1")  # one standard error is 0.008, or 0.05
    for queries, kind in ((None, "healthy"), (90, "no_better")):
        verdict = judge(records, [], 4000, queries=queries)
        assert verdict is not None
        assert verdict.verdict == kind
    assert judge(records, [], 4000, queries=29) is None
    knn = judge(evaluations(0.5, 0.55), [], 4000, queries=90)
    assert knn is not None
    assert knn.verdict == "healthy"


def test_accuracy_of_a_single_class_is_not_judged() -> None:
    assert judge(evaluations(1.0, 1.0, 1.0), [], 100) is None


def test_supervised_run_is_judged_by_its_backbone() -> None:
    """Its embedding is not measured before training, and has another width."""
    records = []
    for epoch, (recall, rank) in enumerate([(0.2, 60.0), (0.9, 90.0), (0.9, 90.0)]):
        metrics = {"recall_at_10": recall, "recall_at_100": 0.99, "effective_rank": rank}
        records.append(record("backbone" if epoch else "untrained", epoch, metrics))
        if epoch:
            records.append(record("embedding", epoch, metrics | {"effective_rank": 30.0}))
    verdict = judged(records)
    assert (verdict.verdict, verdict.metrics["recall_at_10"]) == ("healthy", 0.9)
    assert "Without labels" not in verdict.message


def test_metric_that_is_not_a_number_is_not_judged() -> None:
    assert judge(evaluations(3.0, math.nan, name="effective_rank"), [], 100) is None


def test_small_difference_on_few_images_is_chance() -> None:
    records = evaluations(0.5, 0.5, 0.53)
    assert judged(records, held_out=100).verdict == "no_better"
    assert judged(records, held_out=10_000).verdict == "still_rising"


def test_collapse_comes_before_metrics() -> None:
    verdict = judged(evaluations(0.2, 0.5, 0.6), "constant_output")
    assert verdict.verdict == "collapsed"
    assert "collapsed: constant_output. The event `collapse`" in verdict.message
    assert judge([], ["norm_explosion"], 0) is not None, "also if nothing is evaluated"


def test_verdict_without_labels_says_what_it_does_not_say() -> None:
    verdict = judged(evaluations(3.0, 20.0, 41.0, 41.5, name="effective_rank"))
    assert verdict.verdict == "healthy"
    assert "effective_rank 41.5, 3 at the start" in verdict.message
    assert "Without labels" in verdict.message
    assert "evaluate.dataset" in verdict.message
    assert judged(evaluations(41.0, 20.0, 42.0, name="effective_rank")).verdict == "no_better"


def test_verdict_needs_metrics_before_and_after_training() -> None:
    assert judge([], [], 0) is None
    assert judge(evaluations(0.2), [], 100) is None
    assert judge(evaluations(0.2, 0.5)[1:], [], 100) is None
    assert judge(evaluations(0.2, 0.5, name="mean_norm"), [], 100) is None


def test_weights_to_start_from_are_the_start() -> None:
    records = evaluations(0.2, 0.5)
    records[0]["subject"] = "start"
    assert judge(records, [], 1000) == judge(evaluations(0.2, 0.5), [], 1000)


def test_raw_pixels_are_not_the_start() -> None:
    verdict = judged(evaluations(0.2, 0.4, 0.4, 0.4, raw=0.3))
    assert verdict.verdict == "healthy"
    assert verdict.metrics == {"knn_top1_at_start": 0.2, "knn_top1": 0.4, "knn_top1_of_raw": 0.3}


def test_features_below_raw_pixels_are_not_healthy() -> None:
    verdict = judged(evaluations(0.2, 0.4, 0.4, 0.4, raw=0.9))
    assert verdict.verdict == "no_better"
    assert verdict.message.startswith(
        "no better than raw pixels: knn_top1 0.4, 0.2 at the start. Check the views"
    )
    assert verdict.message.endswith("Raw pixels have 0.9.")
    rising = judged(evaluations(0.2, 0.3, 0.4, 0.5, raw=0.9))
    assert rising.verdict == "still_rising"
    assert "Raw pixels have 0.9." in rising.message


share = st.floats(0, 1)


@given(start=share, values=st.lists(share, min_size=1, max_size=8), images=st.integers(30, 10**6))
def test_every_run_with_metrics_has_a_verdict(
    start: float, values: list[float], images: int
) -> None:
    verdict = judge(evaluations(start, *values), [], images)
    if verdict is None:
        assert start == values[-1] == 1
        return
    assert json.loads(json.dumps(verdict.as_dict(), allow_nan=False))["message"]
    if values[-1] <= start:
        assert verdict.verdict == "no_better"
    if verdict.verdict == "falling":
        assert max(values) > values[-1]


@pytest.mark.usefixtures("without_plots")
def test_run_reports_verdict_in_event_metrics_and_card(tmp_path: Path) -> None:
    index = ingest(image_folder(tmp_path / "pictures", classes=0, per_class=12))
    reporter = Recorder(tmp_path / "out")
    spec = resolved(
        index,
        train={"batch_size": 4, "epochs": 2, "checkpoint_every_epochs": 1},
        evaluate={"holdout": {"fraction": 0.5}},
    )
    run(spec, index, tmp_path / "cache", reporter)
    ((message, data),) = reporter.verdicts
    assert message.startswith("Verdict: ")
    (_, before, _), (_, final, _) = reporter.checkpoints
    stored = json.loads((final / "metrics.json").read_text())["verdict"]
    assert message == f"Verdict: {stored['message']}"
    assert data == stored
    assert message in (final / "README.md").read_text()
    assert json.loads((before / "metrics.json").read_text())["verdict"] is None
    assert "Verdict" not in (before / "README.md").read_text()
