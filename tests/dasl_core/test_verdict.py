"""The verdict at the end of a training."""

import json
import math
from collections import Counter
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasl_core.hits import Hits
from dasl_core.verdict import Anchors, Verdict, judge
from tests.support.training_world import image_folder, ingest, recorded, resolved


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
        ((0.3, 0.5, 0.6, 0.6, 0.6), "healthy", "healthy: k-NN 60.0 % (20.0 % at the start)."),
        (
            (0.3, 0.4, 0.5, 0.6),
            "still_rising",
            "train longer. Since epoch 3 of 4, k-NN rose from 50.0 % to 60.0 % (20.0 % at the start).",
        ),
        (
            (0.3, 0.2, 0.2, 0.2),
            "no_better",
            "no better than the start: k-NN 20.0 % (20.0 % at the start)",
        ),
        ((0.1, 0.1, 0.1, 0.1), "no_better", "no better than the start"),
        (
            (0.5, 0.6, 0.4, 0.4),
            "falling",
            "on average before, 60.0 % at epoch 2, and is 40.0 % now",
        ),
        ((0.9, 0.9, 0.5, 0.5, 0.5, 0.5), "falling", "at epoch 1, and is 50.0 % now"),
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
def test_few_images_are_not_judged(values: tuple[float, ...]) -> None:
    few = judged(evaluations(0.0, *values), held_out=29)
    assert few.verdict == "too_few_images"
    assert "29 images are held out, so one of them is 3.4 %. k-NN 100.0 % (0.0 % at" in few.message
    assert judged(evaluations(0.0, *values), held_out=30).verdict != "too_few_images"


def test_error_of_recall_is_that_of_its_queries() -> None:
    records = evaluations(0.5, 0.55, name="recall_at_1")  # one standard error is 0.008, or 0.05
    for queries, kind in ((None, "healthy"), (90, "no_better")):
        verdict = judge(records, [], 4000, queries=queries)
        assert verdict is not None
        assert verdict.verdict == kind
    few = judge(records, [], 4000, queries=29)
    assert few is not None
    assert few.verdict == "too_few_images"
    knn = judge(evaluations(0.5, 0.55), [], 4000, queries=90)
    assert knn is not None
    assert knn.verdict == "healthy"


def test_accuracy_that_cannot_rise_is_not_judged() -> None:
    records = evaluations(1.0, 1.0, 1.0)
    assert judge(records, [], 100) is None
    for each, views in zip(records, (0.3, 0.3, 0.9), strict=True):
        each["metrics"] |= {"recall_at_1": 1.0, "instance_recall_at_1": views}
    verdict = judged(records, held_out=100)
    assert verdict.message.startswith(
        "still rising: train longer. Since epoch 1 of 2, R@1 of views"
    )


Shape = Literal["nothing", "plateau"]


def simulated(shape: Shape, correlation: float, seed: int) -> Verdict:
    """Judge a run whose images are right with probabilities that depend on their difficulty."""
    random, images = np.random.default_rng(seed), 200
    difficulty = random.normal(size=images)
    records, hits = [], []
    for epoch in range(11):
        noise = random.normal(size=images) * math.sqrt(1 - correlation**2)
        level = 0.3 if epoch == 0 or shape == "nothing" else 0.6
        right = correlation * difficulty + noise > NormalDist().inv_cdf(1 - level)
        subject = "backbone" if epoch else "untrained"
        records.append(record(subject, epoch, {"knn_top1": right.mean()}))
        packed = {"knn_top1": Hits.pack(right.tolist()).encode()}
        hits.append({"step": 10 * epoch, "subject": subject, "right": packed})
    verdict = judge(records, [], images, hits=hits)
    assert verdict is not None
    return verdict


@pytest.mark.parametrize("correlation", [0.8, 0.95])
def test_chance_is_rarely_called_a_change(correlation: float) -> None:
    """Unpaired, a standard error called 6 to 10 % of untrained runs healthy, and 15 % of flat ones falling."""
    runs = 400
    cases: dict[Shape, str] = {"nothing": "no_better", "plateau": "healthy"}
    for shape, expected in cases.items():
        found = Counter(simulated(shape, correlation, seed).verdict for seed in range(runs))
        assert all(count <= 0.05 * runs for kind, count in found.items() if kind != expected)


def test_branch_on_other_images_is_compared_without_pairs() -> None:
    records = evaluations(0.2, 0.6)
    hits = [
        {
            "step": step,
            "subject": subject,
            "right": {"knn_top1": Hits.pack([True] * images).encode()},
        }
        for step, subject, images in ((0, "untrained", 50), (10, "backbone", 60))
    ]
    verdict = judge(records, [], 1000, hits=hits)
    assert verdict is not None
    assert verdict.verdict == "healthy"


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
    assert "effective rank 41.5 (3 at the start)" in verdict.message
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
        "worse than raw pixels: k-NN 40.0 %, where raw pixels have 90.0 % (20.0 % at the start). Check the views"
    )
    rising = judged(evaluations(0.2, 0.3, 0.4, 0.5, raw=0.9))
    assert rising.verdict == "still_rising"
    assert rising.message.endswith(
        "(20.0 % at the start, raw pixels 90.0 %). It is still below raw pixels (90.0 %)."
    )
    above = judged(evaluations(0.2, 0.3, 0.4, 0.5, raw=0.45))
    assert above.verdict == "still_rising"
    assert "below" not in above.message


def test_rise_is_dated_by_the_evaluation_it_is_measured_from() -> None:
    records = [
        record("raw", 0, {"knn_top1": 0.438}),
        record("untrained", 0, {"knn_top1": 0.1}),
        record("backbone", 3, {"knn_top1": 0.156}),
        record("backbone", 6, {"knn_top1": 0.266}),
    ]
    verdict = judged(records)
    assert verdict.message == (
        "still rising: train longer. Since epoch 3 of 6, k-NN rose from 15.6 % to 26.6 % (10.0 % at the start, raw "
        "pixels 43.8 %). It is still below raw pixels (43.8 %)."
    )
    assert verdict.metrics["knn_top1_before_last_quarter"] == 0.156


def test_message_compares_loss_rank_and_accuracy_with_their_bounds() -> None:
    records = evaluations(0.286, 0.095, raw=0.286)
    records[-1]["metrics"]["effective_rank"] = 12.5
    anchors = Anchors({"knn_top1": 0.05}, largest_rank=30, loss=3.591, chance_loss=4.174)
    verdict = judge(records, [], 42, anchors=anchors)
    assert verdict is not None
    assert verdict.message.startswith(
        "no better than the start: k-NN 9.5 % (28.6 % at the start, raw pixels 28.6 %, chance 5.0 %)."
    )
    assert verdict.message.endswith(
        "Mean loss of the last epoch, without regularizers, 3.59 of 4.17 by chance, effective rank 12.5 of at most 30. 42 images are held out, so one of them is "
        "2.4 %."
    )


def test_difference_to_raw_pixels_may_be_chance() -> None:
    verdict = judged(evaluations(0.2, 0.45, 0.45, 0.45, raw=0.42), held_out=100)
    assert verdict.verdict == "no_better"
    assert "no better than raw pixels: k-NN 45.0 %, where raw pixels have 42.0 %, which may be" in (
        verdict.message
    )
    assert "examples/which-views.yaml compares them" in verdict.message


def test_views_are_judged_without_labels() -> None:
    records = evaluations(0.3, 0.9, 0.9, 0.9, name="instance_recall_at_1", raw=0.5)
    for each in records:
        each["metrics"]["effective_rank"] = 10.0
    verdict = judged(records)
    assert verdict.verdict == "healthy"
    assert "R@1 of views 90.0 % (30.0 % at the start, raw pixels 50.0 %)" in verdict.message
    assert "Without labels this says only whether views" in verdict.message


@pytest.mark.parametrize(("raw", "also"), [(1.0, ", also of raw pixels"), (0.9, "")])
def test_labels_that_every_backbone_tells_apart_are_not_called_missing(
    raw: float, also: str
) -> None:
    records = evaluations(0.3, 0.9, 0.9, 0.9, name="instance_recall_at_1", raw=0.5)
    for each in records:
        each["metrics"] |= {"knn_top1": 1.0, "recall_at_1": 1.0}
    records[0]["metrics"]["recall_at_1"] = raw
    message = judged(records).message
    assert "Without labels" not in message
    assert message.endswith(
        f"The labels tell nothing here: k-NN and R@1 are 100 % at the start and now{also}. So this says only whether "
        "views of an image find it among the others; evaluate.dataset can name a data set whose labels are harder to "
        "tell apart."
    )


def test_error_of_views_is_that_of_the_images_that_they_are_compared_with() -> None:
    """These are 3,334 of 10,000."""
    records = evaluations(0.5, 0.515, name="instance_recall_at_1")
    assert judged(records, held_out=10_000).verdict == "no_better"
    assert judged(evaluations(0.5, 0.515), held_out=10_000).verdict == "healthy"


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
    spec = resolved(
        index,
        train={"batch_size": 4, "epochs": 2, "checkpoint_every_epochs": 1},
        evaluate={"holdout": {"fraction": 0.5}},
    )
    reporter = recorded(spec, index, tmp_path / "cache", tmp_path / "out")
    ((message, data),) = reporter.verdicts
    assert message.startswith("Verdict: ")
    (_, before, _), (_, final, _) = reporter.checkpoints
    stored = json.loads((final / "metrics.json").read_text())["verdict"]
    saved = json.loads((final / "training_state.json").read_text())["progress"]
    assert [(e["step"], e["subject"]) for e in saved["hits"]] == [
        (e["step"], e["subject"]) for e in saved["evaluations"]
    ]
    for each, evaluation in zip(saved["hits"], saved["evaluations"], strict=True):
        hits = Hits.decode(each["right"]["instance_recall_at_1"])
        share = evaluation["metrics"]["instance_recall_at_1"]
        assert hits.bits.bit_count() / hits.images == share
    assert message == f"Verdict: {stored['message']}"
    assert data == stored
    assert message in (final / "README.md").read_text()
    assert json.loads((before / "metrics.json").read_text())["verdict"] is None
    assert "Verdict" not in (before / "README.md").read_text()
