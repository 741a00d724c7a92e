"""Verdict on a finished training, from the metrics of its evaluations.

Imports only light modules, for the commands.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from dasl_core.headlines import (
    ACCURACIES,
    INSTANCE_RECALL,
    RECALL,
    denominator,
    format_metric,
    metric_label,
    number_of,
)
from dasl_core.vocabulary import BEFORE_TRAINING

Kind = Literal["healthy", "collapsed", "no_better", "falling", "still_rising", "too_few_images"]

# Smallest relevant change of an effective rank, which has no standard error. Our choice.
RANK_CHANGE = 0.05
# Share of the training after which a rising metric means "train longer". Our choice.
LAST_PART = 0.75
# Accuracies on fewer images are not meaningful.
FEWEST_IMAGES = 30
# With fewer, a single image is more than one percent, which the message mentions.
MANY_IMAGES = 100

_UNLABELED = {
    "effective_rank": "Without labels this says only whether the features are spread out; evaluate.dataset can "
    "name a labeled data set.",
    INSTANCE_RECALL: "Without labels this says only whether views of an image find it among the others; "
    "evaluate.dataset can name a labeled data set.",
}


@dataclass(frozen=True)
class Verdict:
    """A verdict on a training.

    Attributes:
        verdict: the verdict in one word.
        message: a sentence with metrics and advice.
        metrics: the decisive metrics, by name.
    """

    verdict: Kind
    message: str
    metrics: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        """Return the verdict, JSON-ready."""
        return asdict(self)


@dataclass(frozen=True)
class Anchors:
    """Reference values for the metrics of a run, in addition to its start and raw pixels.

    Attributes:
    chance: accuracy of a random neighbor, by metric.
    largest_rank: the largest possible effective rank.
    loss: mean loss of the method, without regularizers, in the last epoch.
    chance_loss: loss with equally likely candidates or outputs.
    """

    chance: Mapping[str, float] = field(default_factory=dict)
    largest_rank: int | None = None
    loss: float | None = None
    chance_loss: float | None = None


@dataclass(frozen=True)
class _Curve:
    """A metric before training and at each later evaluation; larger is better."""

    name: str
    start: float
    values: Sequence[float]
    steps: Sequence[int]
    epochs: Sequence[float]
    margin: float
    """A smaller difference may be chance."""
    raw: float | None
    """The metric of raw pixels; None if it was not measured."""
    images: int
    """Denominator: the number of images."""

    @property
    def last(self) -> float:
        return self.values[-1]

    def ends(self) -> dict[str, float]:
        """Return the values before and after training, and of raw pixels, by name."""
        raw = {} if self.raw is None else {f"{self.name}_of_raw": self.raw}
        return {f"{self.name}_at_start": self.start, self.name: self.last, **raw}


def judge(
    evaluations: Sequence[Mapping[str, Any]],
    collapsed: Sequence[str],
    held_out: int,
    queries: int | None = None,
    anchors: Anchors | None = None,
) -> Verdict | None:
    """Judge a training by its evaluations.

    The metric is the k-NN accuracy of the backbone; without it its R@1, or R@K with the smallest K; without
    labels the R@1 of views, or else its effective rank. It is compared with its value before training, its earlier
    values, and that of raw pixels. A difference counts if it exceeds one standard error of an accuracy on this
    number of images, or 5 % of a rank.

    Args:
        evaluations: records with step, epoch, subject and metrics, oldest first.
        collapsed: causes of a collapse from which the training has not recovered.
        held_out: number of evaluated images.
        queries: number of queries of R@K with a gallery; None: all held-out images.
        anchors: further reference values for the message.

    Returns:
        The verdict; None if nothing collapsed, and no metric was measured both before and after training.
    """
    anchors = Anchors() if anchors is None else anchors
    curve = _curve(evaluations, held_out, held_out if queries is None else queries)
    context = _context(evaluations, anchors)
    if collapsed:
        message = f"collapsed: {', '.join(collapsed)}. The event `collapse` says what to change."
        return Verdict("collapsed", message + context, {} if curve is None else curve.ends())
    if curve is None:
        return None
    kind, message, metrics = _compare(curve, anchors)
    advice = _UNLABELED.get(curve.name)
    if kind != "too_few_images" and curve.name != "effective_rank" and curve.images < MANY_IMAGES:
        context += f" {_resolution(curve.images)}"
    return Verdict(kind, message + context + (f" {advice}" if advice else ""), metrics)


def _compare(curve: _Curve, anchors: Anchors) -> tuple[Kind, str, dict[str, float]]:
    """Return the verdict in one word, its sentence, and the decisive metrics."""
    name, metrics = curve.name, curve.ends()
    last, start = format_metric(name, curve.last), format_metric(name, curve.start)
    references = [f"{start} at the start"]
    if curve.raw is not None:
        references.append(f"raw pixels {format_metric(name, curve.raw)}")
    if name in anchors.chance:
        references.append(f"chance {format_metric(name, anchors.chance[name])}")
    label, others = metric_label(name), ", ".join(references)
    if name != "effective_rank" and curve.images < FEWEST_IMAGES:
        message = (
            f"too few images: {_resolution(curve.images)} {label} {last} ({others}). Hold out more images "
            "(evaluate.holdout.fraction)."
        )
        return "too_few_images", message, metrics
    if curve.last <= curve.start + curve.margin:
        message = (
            f"no better than the start: {label} {last} ({others}). Check the learning rate, the views (augment) and "
            "the number of epochs."
        )
        return "no_better", message, metrics
    best = max(range(len(curve.values)), key=lambda i: curve.values[i])
    if curve.last < curve.values[best] - 2 * curve.margin:
        metrics |= {f"{name}_best": curve.values[best], "best_epoch": curve.epochs[best]}
        message = (
            f"falling: {label} was {format_metric(name, curve.values[best])} at epoch {curve.epochs[best]:g} and is "
            f"{last} now ({others}). Train for fewer epochs, or lower the learning rate."
        )
        return "falling", message, metrics
    compared = _evaluation_before_last_part(curve)
    if compared is not None and curve.last > curve.values[compared] + curve.margin:
        before, since = curve.values[compared], curve.epochs[compared]
        metrics[f"{name}_before_last_quarter"] = before
        message = (
            f"still rising: train longer. Since epoch {since:g} of {curve.epochs[-1]:g}, {label} rose from "
            f"{format_metric(name, before)} to {last} ({others})."
        )
        if curve.raw is not None and curve.last < curve.raw:
            message += f" It is still below raw pixels ({format_metric(name, curve.raw)})."
        return "still_rising", message, metrics
    if curve.raw is not None and curve.last <= curve.raw + curve.margin:
        worse = curve.last < curve.raw - curve.margin
        rest = ", ".join(reference for reference in references if not reference.startswith("raw"))
        message = (
            f"{'worse' if worse else 'no better'} than raw pixels: {label} {last}, where raw pixels have "
            f"{format_metric(name, curve.raw)}{'' if worse else ', which may be chance'} ({rest}). Check the views (augment), which may remove what tells the "
            "images apart, and the number of epochs."
        )
        return "no_better", message, metrics
    return "healthy", f"healthy: {label} {last} ({others}).", metrics


def _context(evaluations: Sequence[Mapping[str, Any]], anchors: Anchors) -> str:
    """Return a sentence on the loss and the effective rank with a leading space; "" without both."""
    parts = []
    if anchors.loss is not None and math.isfinite(anchors.loss):
        part = f"loss {anchors.loss:.3g}"
        if anchors.chance_loss is not None:
            part += f" of {anchors.chance_loss:.3g} by chance"
        parts.append(part)
    trained = [e["metrics"] for e in evaluations if e["subject"] == "backbone" and e["step"] > 0]
    rank = _finite(trained[-1], "effective_rank") if trained else None
    if rank is not None:
        most = "" if anchors.largest_rank is None else f" of at most {anchors.largest_rank}"
        parts.append(f"effective rank {rank:.3g}{most}")
    text = ", ".join(parts)
    return f" {text[0].upper()}{text[1:]}." if text else ""


def _resolution(images: int) -> str:
    """Describe the resolution of an accuracy on a number of images."""
    if images == 1:
        return "A single image is held out."
    return f"{images} images are held out, so one of them is {100 / images:.1f} %."


def _curve(evaluations: Sequence[Mapping[str, Any]], held_out: int, queries: int) -> _Curve | None:
    """Return the best known metric of the backbone measured before and after training.

    The embedding of a supervised method is not measured before training.
    """
    start = next((e for e in evaluations if e["subject"] in BEFORE_TRAINING), None)
    trained = [e for e in evaluations if e["subject"] == "backbone" and e["step"] > 0]
    if start is None or not trained:
        return None
    for name in _accuracies(start["metrics"]) or [INSTANCE_RECALL, "effective_rank"]:
        images = queries if name.startswith(RECALL) else denominator(name, held_out)
        values = [_finite(e["metrics"], name) for e in (start, *trained)]
        measured = [value for value in values if value is not None]
        if len(measured) < len(values) or images == 0:
            continue
        first, last = measured[0], measured[-1]
        if name == "effective_rank":
            margin = RANK_CHANGE * last
        else:
            if min(first, last) == 1:
                continue  # nothing can be better, as with a single class
            # Laplace's estimate: the error of 0 or 1 is not 0.
            share = (last * images + 1) / (images + 2)
            margin = math.sqrt(share * (1 - share) / images)
        steps, epochs = [e["step"] for e in trained], [e["epoch"] for e in trained]
        pixels: Mapping[str, Any] = next(
            (e["metrics"] for e in evaluations if e["subject"] == "raw"), {}
        )
        raw = _finite(pixels, name)
        return _Curve(name, first, measured[1:], steps, epochs, margin, raw, images)
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


def _evaluation_before_last_part(curve: _Curve) -> int | None:
    """Return the position of the last evaluation in the first three quarters of the training, or None."""
    limit = LAST_PART * curve.steps[-1]
    return next((i for i in reversed(range(len(curve.steps))) if curve.steps[i] <= limit), None)
