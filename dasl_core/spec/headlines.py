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


def in_a_line(metrics: Mapping[str, object]) -> str:
    """`knn_top1 0.412, effective_rank 54`: those that are known and are numbers; "" without any."""
    known = ((name, metrics.get(name)) for name in HEADLINES)
    return ", ".join(f"{name} {x:.4g}" for name, x in known if isinstance(x, int | float))
