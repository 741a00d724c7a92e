"""Headline metrics of evaluations: what is shown where there is no room for all, and ranks checkpoints.

Imports nothing heavy, for the commands.
"""

from collections.abc import Mapping
from dataclasses import dataclass

HEADLINES = (
    "linear_top1",
    "finetune_top1",
    "knn_top1",
    "recall_at_1",
    "nmi",
    "alignment",
    "uniformity",
    "effective_rank",
)
"""What papers report of a representation first, best known first; then whether it is healthy."""


@dataclass(frozen=True)
class Accuracy:
    """A metric that each evaluation during training measures; larger is better.

    Attributes:
        field: its name in the progress of a job.
        label: where there is little room.
    """

    metric: str
    field: str
    label: str
    title: str


ACCURACIES = (
    Accuracy("knn_top1", "knn", "k-NN", "k-NN top-1"),
    Accuracy("recall_at_1", "recall_at_1", "R@1", "R@1"),
)
"""Accuracies by preference: the first one that a checkpoint has ranks it."""

PLOTTED = ("recall_at_1", "knn_top1", "effective_rank")
"""Metrics whose curves are plotted, by preference; R@1 also shows how unseen classes separate."""


def number_of(metrics: Mapping[str, object], name: str) -> float | None:
    """Return a metric, or None if it is missing or not a number."""
    value = metrics.get(name)
    return value if isinstance(value, int | float) else None


def headline(metrics: Mapping[str, object]) -> str:
    """Return the headline metrics in one line, `knn_top1 0.412, effective_rank 54`; "" without any."""
    known = ((name, number_of(metrics, name)) for name in HEADLINES)
    return ", ".join(f"{name} {value:.4g}" for name, value in known if value is not None)
