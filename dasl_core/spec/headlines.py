"""Which figures of an evaluation come first where there is not room for all: a line, a table."""

from collections.abc import Mapping

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


def headlines(metrics: Mapping[str, object]) -> dict[str, float]:
    """Those of the figures that are known and are numbers, in the order of `HEADLINES`."""
    known = {name: metrics.get(name) for name in HEADLINES}
    return {name: value for name, value in known.items() if isinstance(value, int | float)}
