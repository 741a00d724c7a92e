"""Verdict on a finished training, from the metrics of its evaluations.

Imports only light modules, for the commands.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any, Literal, NamedTuple

from dasl_core.headlines import (
    ACCURACIES,
    INSTANCE_RECALL,
    RECALL,
    denominator,
    format_metric,
    metric_label,
    number_of,
)
from dasl_core.hits import Z95, Hits, compare
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

# What the metrics without labels say.
_UNLABELED = {
    "effective_rank": "whether the features are spread out",
    INSTANCE_RECALL: "whether views of an image find it among the others",
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


class _Point(NamedTuple):
    """A metric of one evaluation, and which images are right, if known."""

    value: float
    hits: Hits | None = None


@dataclass(frozen=True)
class _Curve:
    """A metric before training and at each later evaluation; larger is better."""

    name: str
    start: _Point
    points: Sequence[_Point]
    steps: Sequence[int]
    epochs: Sequence[float]
    raw: _Point | None
    """The metric of raw pixels; None if it was not measured."""
    images: int
    """Denominator: the number of images."""

    @property
    def last(self) -> _Point:
        return self.points[-1]

    def ends(self) -> dict[str, float]:
        """Return the values before and after training, and of raw pixels, by name."""
        raw = {} if self.raw is None else {f"{self.name}_of_raw": self.raw.value}
        return {f"{self.name}_at_start": self.start.value, self.name: self.last.value, **raw}

    def compare(self, one: _Point, others: Sequence[_Point]) -> int:
        """Return 1 or -1 if a value is larger, or smaller, than the mean of others by more than chance, else 0."""
        hits = [point.hits for point in (one, *others) if point.hits is not None]
        # A branch may have other held-out images than the run that it continues.
        if len(hits) == len(others) + 1 and len({each.images for each in hits}) == 1:
            return compare(hits[0], hits[1:])
        difference = one.value - fmean(other.value for other in others)
        if abs(difference) <= self._margin(one.value, one.value - difference):
            return 0
        return 1 if difference > 0 else -1

    def _margin(self, one: float, other: float) -> float:
        """Return the smallest difference of unpaired values that counts, at 95 %."""
        if self.name == "effective_rank":
            return RANK_CHANGE * one
        # Laplace's estimate: the error of 0 or 1 is not 0.
        shares = [(value * self.images + 1) / (self.images + 2) for value in (one, other)]
        return Z95 * math.sqrt(sum(share * (1 - share) for share in shares) / self.images)


def judge(
    evaluations: Sequence[Mapping[str, Any]],
    collapsed: Sequence[str],
    held_out: int,
    queries: int | None = None,
    anchors: Anchors | None = None,
    hits: Sequence[Mapping[str, Any]] = (),
) -> Verdict | None:
    """Judge a training by its evaluations.

    The metric is the k-NN accuracy of the backbone; without it its R@1, or R@K with the smallest K; without
    labels, or if nothing can be better than 100 %, the R@1 of views, or else its effective rank. It is compared with
    its value before training, its earlier values, and that of raw pixels. A difference of accuracies counts if it is
    significant at 95 %, image by image where `hits` has both evaluations; that of ranks from 5 %.

    Args:
        evaluations: records with step, epoch, subject and metrics, oldest first.
        collapsed: causes of a collapse from which the training has not recovered.
        held_out: number of evaluated images.
        queries: number of queries of R@K with a gallery; None: all held-out images.
        anchors: further reference values for the message.
        hits: records with step, subject and `right`: which images an evaluation gets right, encoded, by accuracy.

    Returns:
        The verdict; None if nothing collapsed, and no metric was measured both before and after training.
    """
    anchors = Anchors() if anchors is None else anchors
    curve = _curve(evaluations, held_out, held_out if queries is None else queries, hits)
    context = _context(evaluations, anchors)
    if collapsed:
        message = f"collapsed: {', '.join(collapsed)}. The event `collapse` says what to change."
        return Verdict("collapsed", message + context, {} if curve is None else curve.ends())
    if curve is None:
        return None
    kind, message, metrics = _compare(curve, anchors)
    if curve.name in _UNLABELED:
        context += f" {_limits(curve, evaluations)}"
    if kind != "too_few_images" and curve.name != "effective_rank" and curve.images < MANY_IMAGES:
        context += f" {_resolution(curve.images)}"
    return Verdict(kind, message + context, metrics)


def _limits(curve: _Curve, evaluations: Sequence[Mapping[str, Any]]) -> str:
    """Say what a metric without labels does not say, and why no metric with labels was judged."""
    says = _UNLABELED[curve.name]
    perfect = _perfect_accuracies(evaluations)
    if not perfect:
        return (
            f"Without labels this says only {says}; evaluate.dataset can name a labeled data set."
        )
    names = [metric_label(name) for name in perfect]
    listed = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    raw = next((e for e in evaluations if e["subject"] == "raw"), None)
    also = (
        ", also of raw pixels"
        if raw and all(_finite(raw["metrics"], name) == 1 for name in perfect)
        else ""
    )
    return (
        f"The labels tell nothing here: {listed} {'is' if len(names) == 1 else 'are'} 100 % at the start and now{also}. "
        f"So this says only {says}; evaluate.dataset can name a data set whose labels are harder to tell apart."
    )


def _perfect_accuracies(evaluations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the accuracies of the backbone that are 100 % before and after training."""
    start = next(e["metrics"] for e in evaluations if e["subject"] in BEFORE_TRAINING)
    last = [e["metrics"] for e in evaluations if e["subject"] == "backbone"][-1]
    return [name for name in _accuracies(start) if _finite(start, name) == _finite(last, name) == 1]


def _compare(curve: _Curve, anchors: Anchors) -> tuple[Kind, str, dict[str, float]]:
    """Return the verdict in one word, its sentence, and the decisive metrics."""
    name, metrics = curve.name, curve.ends()
    final, raw = curve.last.value, curve.raw
    last, start = format_metric(name, final), format_metric(name, curve.start.value)
    references = [f"{start} at the start"]
    if raw is not None:
        references.append(f"raw pixels {format_metric(name, raw.value)}")
    if name in anchors.chance:
        references.append(f"chance {format_metric(name, anchors.chance[name])}")
    label, others = metric_label(name), ", ".join(references)
    if name != "effective_rank" and curve.images < FEWEST_IMAGES:
        message = (
            f"too few images: {_resolution(curve.images)} {label} {last} ({others}). Hold out more images "
            "(evaluate.holdout.fraction), or evaluate on others (evaluate.dataset)."
        )
        return "too_few_images", message, metrics
    if curve.compare(curve.last, [curve.start]) < 1:
        message = (
            f"no better than the start: {label} {last} ({others}). Check the learning rate, the views (augment; "
            "examples/which-views.yaml compares them) and the number of epochs."
        )
        return "no_better", message, metrics
    # A rising run is never below the mean of all, but may have fallen below that of the second half alone.
    fallen = [
        earlier
        for earlier in (_second_half(curve), curve.points[:-1])
        if earlier and curve.compare(curve.last, earlier) < 0
    ]
    if fallen:
        mean = fmean(point.value for point in fallen[0])
        best = max(range(len(curve.points)), key=lambda i: curve.points[i].value)
        metrics |= {
            f"{name}_best": curve.points[best].value,
            "best_epoch": curve.epochs[best],
            f"{name}_before": mean,
        }
        message = (
            f"falling: {label} was {format_metric(name, mean)} on average before, "
            f"{format_metric(name, curve.points[best].value)} at epoch {curve.epochs[best]:g}, and is "
            f"{last} now ({others}). Train for fewer epochs, or lower the learning rate."
        )
        return "falling", message, metrics
    compared = _evaluation_before_last_part(curve)
    if compared is not None and curve.compare(curve.last, [curve.points[compared]]) > 0:
        before, since = curve.points[compared].value, curve.epochs[compared]
        metrics[f"{name}_before_last_quarter"] = before
        message = (
            f"still rising: train longer. Since epoch {since:g} of {curve.epochs[-1]:g}, {label} rose from "
            f"{format_metric(name, before)} to {last} ({others})."
        )
        if raw is not None and final < raw.value:
            message += f" It is still below raw pixels ({format_metric(name, raw.value)})."
        return "still_rising", message, metrics
    if raw is not None and (sign := curve.compare(curve.last, [raw])) < 1:
        worse = sign < 0
        rest = ", ".join(reference for reference in references if not reference.startswith("raw"))
        message = (
            f"{'worse' if worse else 'no better'} than raw pixels: {label} {last}, where raw pixels have "
            f"{format_metric(name, raw.value)}{'' if worse else ', which may be chance'} ({rest}). Check the views (augment), which may remove what tells the "
            "images apart (examples/which-views.yaml compares them), and the number of epochs."
        )
        return "no_better", message, metrics
    return "healthy", f"healthy: {label} {last} ({others}).", metrics


def _context(evaluations: Sequence[Mapping[str, Any]], anchors: Anchors) -> str:
    """Return a sentence on the loss and the effective rank with a leading space; "" without both."""
    parts = []
    if anchors.loss is not None and math.isfinite(anchors.loss):
        part = f"mean loss of the last epoch, without regularizers, {anchors.loss:.3g}"
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


def _curve(
    evaluations: Sequence[Mapping[str, Any]],
    held_out: int,
    queries: int,
    hits: Sequence[Mapping[str, Any]],
) -> _Curve | None:
    """Return the best known metric of the backbone measured before and after training.

    The embedding of a supervised method is not measured before training.
    """
    start = next((e for e in evaluations if e["subject"] in BEFORE_TRAINING), None)
    trained = [e for e in evaluations if e["subject"] == "backbone" and e["step"] > 0]
    if start is None or not trained:
        return None
    right = {(record["step"], record["subject"]): record["right"] for record in hits}
    for name in (*_accuracies(start["metrics"]), INSTANCE_RECALL, "effective_rank"):
        images = queries if name.startswith(RECALL) else denominator(name, held_out)

        def point(record: Mapping[str, Any], name: str = name) -> _Point | None:
            value = _finite(record["metrics"], name)
            encoded = right.get((record["step"], record["subject"]), {}).get(name)
            return None if value is None else _Point(value, encoded and Hits.decode(encoded))

        points = [each for e in (start, *trained) if (each := point(e)) is not None]
        if len(points) < len(trained) + 1 or images == 0:
            continue
        if name != "effective_rank" and points[0].value == points[-1].value == 1:
            continue  # nothing can be better, as with a single class
        raw = next((e for e in evaluations if e["subject"] == "raw"), None)
        return _Curve(
            name,
            points[0],
            points[1:],
            [e["step"] for e in trained],
            [e["epoch"] for e in trained],
            None if raw is None else point(raw),
            images,
        )
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


def _second_half(curve: _Curve) -> list[_Point]:
    """Return the earlier evaluations in the second half of the training: before, a metric may still rise."""
    steps = zip(curve.steps[:-1], curve.points, strict=False)
    return [point for step, point in steps if 2 * step >= curve.steps[-1]]


def _evaluation_before_last_part(curve: _Curve) -> int | None:
    """Return the position of the last evaluation in the first three quarters of the training, or None."""
    limit = LAST_PART * curve.steps[-1]
    return next((i for i in reversed(range(len(curve.steps))) if curve.steps[i] <= limit), None)
