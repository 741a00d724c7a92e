"""Headline metrics: their order, and metrics that are no numbers."""

import math

from dasl_core.headlines import (
    ACCURACIES,
    HEADLINES,
    PLOTTED,
    better_direction,
    format_metric,
    headline,
    is_ranked,
    larger_is_better,
    metric_label,
    number_of,
    rank_of_checkpoint,
    score,
)
from dasl_core.text import cut


def test_headline_has_the_known_numbers_in_order() -> None:
    metrics = {"effective_rank": 54.3210, "loss": 1.0, "knn_top1": 0.41234, "nmi": None}
    assert headline(metrics) == "knn_top1 0.4123, effective_rank 54.32"
    assert headline({"loss": 1.0}) == ""


def test_number_of_ignores_what_is_no_number() -> None:
    assert number_of({"knn_top1": "0.4"}, "knn_top1") is None
    assert number_of({}, "knn_top1") is None
    assert number_of({"knn_top1": 0}, "knn_top1") == 0


def test_accuracies_and_plotted_metrics_are_headlines() -> None:
    assert {accuracy.metric for accuracy in ACCURACIES} | set(PLOTTED) <= set(HEADLINES)


def test_metric_has_a_direction_and_a_score() -> None:
    assert [larger_is_better(name) for name in ("recall_at_8", "nmi", "uniformity")] == [
        True,
        True,
        False,
    ]
    assert larger_is_better("alignment") is None
    assert larger_is_better("recall_at_") is None
    assert larger_is_better("knn_top1_k200") is True
    assert larger_is_better("knn_top1_k") is None
    assert better_direction("linear_top1_labels_0.01") is True
    assert format_metric("linear_top1_labels_0.01", 0.5) == "50.0 %"
    assert metric_label("linear_top1_labels_0.01") == "linear probe, 0.01 of the labels"
    assert score({"uniformity": -2.0}, "uniformity") == 2.0
    assert score({"nmi": math.nan}, "nmi") is None
    assert score({"alignment": 0.5}, "alignment") is None


def test_best_checkpoint_is_the_newest_that_was_evaluated_with_the_best_metric() -> None:
    def best(by: str | None, *metrics: dict[str, float]) -> int:
        return max(
            range(len(metrics)), key=lambda step: rank_of_checkpoint(metrics[step], step, by)
        )

    assert best(None, {"knn_top1": 0.1}, {"knn_top1": 0.3}, {"knn_top1": 0.3}) == 2
    tied = [{"knn_top1": 0.3, "evaluated_step": step} for step in (0, 1, 1, 1)]
    assert best(None, *tied) == 1
    assert best(None, *tied[2:], tied[0]) == 1
    assert best(None, {"recall_at_1": 0.2}, {"recall_at_1": 0.1}, {}) == 0
    assert best("nmi", {"knn_top1": 0.9}, {"nmi": 0.1}) == 1
    assert best("uniformity", {"uniformity": -1.0}, {"uniformity": -2.0}) == 1
    assert best(None, {}, {}) == 1
    assert is_ranked({"nmi": 0.1}, "nmi")
    assert not is_ranked({"nmi": 0.1})


def test_cut_text_has_the_given_length() -> None:
    assert cut("abcdef", 6) == "abcdef"
    assert cut("abcdefg", 6) == "abc..."
