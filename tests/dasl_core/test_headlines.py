"""Headline metrics: their order, and metrics that are no numbers."""

from __future__ import annotations

from dasl_core.headlines import ACCURACIES, HEADLINES, PLOTTED, headline, number_of
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


def test_cut_text_has_the_given_length() -> None:
    assert cut("abcdef", 6) == "abcdef"
    assert cut("abcdefg", 6) == "abc..."
