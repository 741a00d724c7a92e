"""Headline metrics of evaluations, for short displays and the ranking of checkpoints.

Imports only light modules, for the commands.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

HEADLINES = (
    "linear_top1",
    "finetune_top1",
    "knn_top1",
    "recall_at_1",
    "instance_recall_at_1",
    "nmi",
    "effective_rank",
)
"""Metrics that papers report, best known first; then metrics of health."""


@dataclass(frozen=True)
class Accuracy:
    """A metric of every evaluation during training, and its field in the progress of a job; larger is better."""

    metric: str
    field: str
    label: str


ACCURACIES = (
    Accuracy("knn_top1", "knn", "k-NN"),
    Accuracy("recall_at_1", "recall_at_1", "R@1"),
)
"""Accuracies by preference; the first available one ranks a checkpoint."""

RECALL = "recall_at_"
"""Prefix of R@K: `recall_at_1`, `recall_at_5`, ..."""

KNN_OTHERS = "knn_top1_k"
"""Prefix of the k-NN accuracies with further numbers of neighbors: `knn_top1_k200`."""

LINEAR_LABELS = "linear_top1_labels_"
"""Prefix of the linear probe's accuracies with shares of the labels: `linear_top1_labels_0.01`."""

INSTANCE_RECALL = "instance_recall_at_1"
"""R@1 of views, which needs no labels."""

VERIFICATION = "verification_accuracy"
"""Accuracy of verification on pairs of images."""

TAR = "tar_at_far_"
"""Prefix of TAR at FAR: `tar_at_far_0.001`."""

HEALTH_LIMIT = 4_096
"""Maximum number of held-out images for label-free metrics of at least quadratic cost. Evenly spaced, because the first
images of the index belong to the first classes."""

PLOTTED = ("knn_top1", "recall_at_1", INSTANCE_RECALL, "effective_rank")
"""Metrics whose curves are plotted, by preference."""

TITLES = {
    "linear_top1": "linear top-1",
    "finetune_top1": "fine-tuned top-1",
    "knn_top1": "k-NN top-1",
    "recall_at_1": "R@1",
    INSTANCE_RECALL: "R@1 of views",
    "nmi": "NMI",
    "effective_rank": "effective rank",
    "alignment": "alignment",
    "uniformity": "uniformity",
    "lr": "learning rate",
    "images_per_second": "images/s",
}
"""Titles of metrics on the page: those of evaluations in the order of its tables, then those of training."""

_NAMES = {
    "knn_top1": "k-NN",
    INSTANCE_RECALL: "R@1 of views",
    "effective_rank": "effective rank",
    "linear_top1": "linear probe",
    "finetune_top1": "fine-tuning",
    "nmi": "NMI",
}
_SHARES = (INSTANCE_RECALL, "_top1", "_top5", RECALL)


def metric_label(metric: str) -> str:
    """Return the display name of a metric, such as "k-NN" or "R@5"."""
    if metric.startswith(RECALL):
        return f"R@{metric.removeprefix(RECALL)}"
    if metric.startswith(KNN_OTHERS):
        return f"k-NN, k = {metric.removeprefix(KNN_OTHERS)}"
    if metric.startswith(LINEAR_LABELS):
        return f"linear probe, {metric.removeprefix(LINEAR_LABELS)} of the labels"
    return _NAMES.get(metric, metric)


def is_share(metric: str) -> bool:
    """Whether a metric is a share from 0 to 1, displayed in percent."""
    prefixes = (RECALL, KNN_OTHERS, VERIFICATION, TAR, LINEAR_LABELS)
    return metric.startswith(prefixes) or metric.endswith(_SHARES)


def format_metric(metric: str, value: float) -> str:
    """Format a metric's value: shares in percent, others with three digits."""
    return f"{100 * value:.1f} %" if is_share(metric) else f"{value:.3g}"


_LARGER_IS_BETTER = {
    "knn_top1": True,
    "instance_recall_at_1": True,
    "nmi": True,
    "pairwise_f1": True,
    "pairwise_precision": True,
    "pairwise_recall": True,
    VERIFICATION: True,
    "effective_rank": True,
    "dimension_std": True,
    "uniformity": False,
}
DIRECTED_METRICS = (*_LARGER_IS_BETTER, f"{RECALL}1")
"""Metrics with a better direction; one R@K stands for all K."""
# `alignment` and the distances have none, because they also fall when features collapse.


def larger_is_better(metric: str) -> bool | None:
    """Return the direction of a metric of every evaluation; None without one."""
    if metric.startswith(RECALL) and metric.removeprefix(RECALL).isdigit():
        return True
    if metric.startswith(KNN_OTHERS) and metric.removeprefix(KNN_OTHERS).isdigit():
        return True
    return metric.startswith(TAR) or _LARGER_IS_BETTER.get(metric)


_FINAL_ACCURACIES = ("linear_top1", "linear_top5", "finetune_top1", "finetune_top5")
"""Accuracies measured once, after the last epoch."""


def better_direction(metric: str) -> bool | None:
    """Return the direction of any evaluation metric; None without one."""
    final = metric in _FINAL_ACCURACIES or metric.startswith(LINEAR_LABELS)
    return True if final else larger_is_better(metric)


def is_share_of_images(metric: str) -> bool:
    """Whether a metric is a share of the held-out images, with steps of one image."""
    recall = metric.removeprefix(RECALL)
    return (
        metric in ("knn_top1", INSTANCE_RECALL, *_FINAL_ACCURACIES)
        or metric.startswith((KNN_OTHERS, LINEAR_LABELS))
        or (recall != metric and recall.isdigit())
    )


def denominator(metric: str, held_out: int) -> int:
    """Return the denominator of a metric: its number of held-out images."""
    if metric != INSTANCE_RECALL or not held_out:
        return held_out
    return math.ceil(held_out / math.ceil(held_out / HEALTH_LIMIT))


def score(metrics: Mapping[str, object], metric: str) -> float | None:
    """Return a metric with larger being better; None if missing, not finite or without direction."""
    value, larger = number_of(metrics, metric), larger_is_better(metric)
    if value is None or larger is None or not math.isfinite(value):
        return None
    return value if larger else -value


EVALUATED_STEP = "evaluated_step"
"""Step of the evaluation whose metrics a checkpoint has."""


def rank_of_checkpoint(
    metrics: Mapping[str, object], step: int, best_by: str | None = None
) -> tuple[float, bool, int]:
    """Return the sort key of a checkpoint, the best one last.

    In a tie the newest is better, of those that were evaluated themselves: others repeat an earlier evaluation.
    Without the metric, the newest is.

    Args:
        best_by: name of the metric; None: the first available of `ACCURACIES`.
    """
    value = _score_by(metrics, best_by)
    is_own = metrics.get(EVALUATED_STEP, step) == step
    return (-math.inf, True, step) if value is None else (value, is_own, step if is_own else -step)


def is_ranked(metrics: Mapping[str, object], best_by: str | None = None) -> bool:
    """Whether a checkpoint has the ranking metric."""
    return _score_by(metrics, best_by) is not None


def _score_by(metrics: Mapping[str, object], best_by: str | None) -> float | None:
    names = [accuracy.metric for accuracy in ACCURACIES] if best_by is None else [best_by]
    scores = (score(metrics, name) for name in names)
    return next((value for value in scores if value is not None), None)


def number_of(metrics: Mapping[str, object], name: str) -> float | None:
    """Return a metric; None if it is missing or not a number."""
    value = metrics.get(name)
    return value if isinstance(value, int | float) else None


def headline(metrics: Mapping[str, object]) -> str:
    """Return the headline metrics in one line, `knn_top1 0.412, effective_rank 54`; "" without any."""
    values = ((name, number_of(metrics, name)) for name in HEADLINES)
    return ", ".join(f"{name} {value:.4g}" for name, value in values if value is not None)
