"""Verdict on a finished training, from the metrics of its evaluations.

Imports nothing heavy, for the commands.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from dasl_core.headlines import ACCURACIES, RECALL, number_of
from dasl_core.vocabulary import BEFORE_TRAINING

Kind = Literal["healthy", "collapsed", "no_better", "falling", "still_rising"]

# What counts as a change of an effective rank; it has no standard error. Our choice.
RANK_CHANGE = 0.05
# Share of the training after which a metric that still rises means "train longer". Our choice.
LAST_PART = 0.75
# Accuracies on fewer images say little.
FEWEST_IMAGES = 30

_UNLABELED = (
    "Without labels this says only whether the features are spread out; evaluate.dataset can name a "
    "labeled data set."
)


@dataclass(frozen=True)
class Verdict:
    """A verdict on a training.

    Attributes:
        verdict: in one word.
        message: a sentence with the metrics and what to do.
        metrics: the metrics that decided it, by name.
    """

    verdict: Kind
    message: str
    metrics: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        """Return the verdict, JSON-ready."""
        return asdict(self)


@dataclass(frozen=True)
class _Curve:
    """A metric before training and at each later evaluation, larger being better."""

    name: str
    start: float
    values: Sequence[float]
    steps: Sequence[int]
    epochs: Sequence[float]
    margin: float
    """A smaller difference may be chance."""
    raw: float | None
    """The metric of raw pixels; None if it was not measured."""

    @property
    def last(self) -> float:
        return self.values[-1]

    def ends(self) -> dict[str, float]:
        """Return the metric before and after training, and of raw pixels, by name."""
        raw = {} if self.raw is None else {f"{self.name}_of_raw": self.raw}
        return {f"{self.name}_at_start": self.start, self.name: self.last, **raw}


def judge(
    evaluations: Sequence[Mapping[str, Any]],
    collapsed: Sequence[str],
    held_out: int,
    queries: int | None = None,
) -> Verdict | None:
    """Judge a training by its evaluations.

    The metric is the k-NN accuracy of the backbone; without it its R@1, or R@K with the smallest K; without
    labels its effective rank. It is compared with its value before training, its earlier values, and that of
    raw pixels. A difference counts if it is larger than one standard error of an accuracy on
    so many images, or 5 % of a rank.

    Args:
        evaluations: records with step, epoch, subject and metrics, oldest first.
        collapsed: causes of a collapse from which the training has not recovered.
        held_out: number of images that were evaluated on.
        queries: number of those that R@K searches a gallery for; None: all.

    Returns:
        The verdict; None if nothing collapsed, and no metric was measured both before and after training,
        or only accuracies on fewer than 30 images.
    """
    curve = _curve(evaluations, held_out, held_out if queries is None else queries)
    if collapsed:
        message = f"collapsed: {', '.join(collapsed)}. The event `collapse` says what to change."
        return Verdict("collapsed", message, {} if curve is None else curve.ends())
    if curve is None:
        return None
    name, last, metrics = curve.name, curve.last, curve.ends()
    text = f"{name} {last:.3g}, {curve.start:.3g} at the start"
    advice = f" {_UNLABELED}" if name == "effective_rank" else ""
    if last <= curve.start + curve.margin:
        message = (
            f"no better than the start: {text}. Check the learning rate, the views (augment) and the number of "
            "epochs."
        )
        return Verdict("no_better", message + advice, metrics)
    below_raw = curve.raw is not None and last <= curve.raw + curve.margin
    if below_raw:
        advice = f" Raw pixels have {curve.raw:.3g}.{advice}"
    best = max(range(len(curve.values)), key=lambda i: curve.values[i])
    if last < curve.values[best] - 2 * curve.margin:
        metrics |= {f"{name}_best": curve.values[best], "best_epoch": curve.epochs[best]}
        message = (
            f"falling: {name} was {curve.values[best]:.3g} at epoch {curve.epochs[best]:g} and is {last:.3g} "
            f"now ({curve.start:.3g} at the start). Train for fewer epochs, or lower the learning rate."
        )
        return Verdict("falling", message + advice, metrics)
    before = _value_before_last_part(curve)
    if before is not None and last > before + curve.margin:
        metrics[f"{name}_before_last_quarter"] = before
        message = (
            f"still rising: train longer. In the last quarter {name} rose from {before:.3g} to {last:.3g} "
            f"({curve.start:.3g} at the start)."
        )
        return Verdict("still_rising", message + advice, metrics)
    if below_raw:
        message = (
            f"no better than raw pixels: {text}. Check the views (augment), which may remove what tells the classes "
            "apart, and the number of epochs."
        )
        return Verdict("no_better", message + advice, metrics)
    return Verdict("healthy", f"healthy: {text}.{advice}", metrics)


def _curve(evaluations: Sequence[Mapping[str, Any]], held_out: int, queries: int) -> _Curve | None:
    """Return the best known metric that was measured before and after training.

    Both are of the backbone: the embedding of a supervised method is not measured before training.
    """
    start = next((e for e in evaluations if e["subject"] in BEFORE_TRAINING), None)
    trained = [e for e in evaluations if e["subject"] == "backbone" and e["step"] > 0]
    if start is None or not trained:
        return None
    for name in _accuracies(start["metrics"]) or ["effective_rank"]:
        images = queries if name.startswith(RECALL) else held_out
        if name != "effective_rank" and images < FEWEST_IMAGES:
            continue
        values = [_finite(e["metrics"], name) for e in (start, *trained)]
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            continue
        first, last = known[0], known[-1]
        if name == "effective_rank":
            margin = RANK_CHANGE * last
        else:
            if min(first, last) == 1:
                continue  # as with a single class: nothing can be better
            # Laplace's estimate: the error of 0 or 1 is not 0.
            share = (last * images + 1) / (images + 2)
            margin = math.sqrt(share * (1 - share) / images)
        steps, epochs = [e["step"] for e in trained], [e["epoch"] for e in trained]
        pixels: Mapping[str, Any] = next(
            (e["metrics"] for e in evaluations if e["subject"] == "raw"), {}
        )
        return _Curve(name, first, known[1:], steps, epochs, margin, _finite(pixels, name))
    return None


def _accuracies(metrics: Mapping[str, Any]) -> list[str]:
    """Return the names of the accuracies of an evaluation, best known first."""
    first = [accuracy.metric for accuracy in ACCURACIES]
    recalls = [name for name in metrics if name.startswith(RECALL) and name not in first]
    recalls.sort(key=lambda name: int(name.removeprefix(RECALL)))
    return [name for name in (*first, *recalls) if name in metrics]


def _finite(metrics: Mapping[str, Any], name: str) -> float | None:
    value = number_of(metrics, name)
    return value if value is not None and math.isfinite(value) else None


def _value_before_last_part(curve: _Curve) -> float | None:
    """Return the last value of the first three quarters of the training, if there is one."""
    limit = LAST_PART * curve.steps[-1]
    return next(
        (
            value
            for value, step in zip(reversed(curve.values), reversed(curve.steps), strict=True)
            if step <= limit
        ),
        None,
    )
