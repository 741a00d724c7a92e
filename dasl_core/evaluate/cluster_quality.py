"""Is a clustering any good? What is logged of the pseudo-labels of cluster-used DAR."""

from __future__ import annotations

import torch
from torch import Tensor

from dasl_core.clustering import Clustering
from dasl_core.evaluate.agreement import normalized_mutual_information


def cluster_quality(
    found: Clustering,
    assignments: Tensor,
    *,
    previous: Tensor | None = None,
    classes: Tensor | None = None,
) -> dict[str, float]:
    """What is logged of a clustering, by name.

    Args:
        found: what `cluster` gave on this rank.
        assignments: (N,) of the rows of all ranks.
        previous: (N,) what these rows were assigned to before, for stability; -1: to nothing.
        classes: (N,) their true classes, when there are any.

    Returns:
        ``size_min``, ``_median`` and ``_max``; ``largest_share``, of all rows;
        ``empty`` now and ``reseeded`` on the way; ``cosine``, the mean
        cosine to the own centre, or, if not spherical, ``squared_distance``, its mean; and,
        if given, ``nmi_previous``, of the rows that were assigned before, and ``nmi_classes``.

    Raises:
        ValueError: when the labellings are not integer vectors of one length.
    """
    count = len(assignments)
    sizes = torch.bincount(assignments, minlength=len(found.centres))
    figures = {
        "size_min": float(sizes.min()),
        "size_median": float(sizes.double().quantile(0.5)),
        "size_max": float(sizes.max()),
        "largest_share": float(sizes.max()) / count,
        "empty": float((sizes == 0).sum()),
        "reseeded": float(found.reseeded),
    }
    if found.metric == "spherical":
        figures["cosine"] = 1 - found.inertia / count / 2
    else:
        figures["squared_distance"] = found.inertia / count
    if previous is not None and bool((known := previous >= 0).any()):
        figures["nmi_previous"] = normalized_mutual_information(assignments[known], previous[known])
    if classes is not None:
        figures["nmi_classes"] = normalized_mutual_information(assignments, classes)
    return figures
