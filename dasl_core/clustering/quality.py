"""Quality of a clustering: the logged metrics of the pseudo-labels of cluster-used DAR."""

from __future__ import annotations

import torch
from torch import Tensor

from dasl_core.clustering.agreement import normalized_mutual_information
from dasl_core.clustering.kmeans import Clustering


def cluster_quality(
    clustering: Clustering,
    assignments: Tensor,
    *,
    previous: Tensor | None = None,
    classes: Tensor | None = None,
) -> dict[str, float]:
    """Metrics of a clustering, by name.

    Args:
        clustering: of `cluster` on this rank.
        assignments: (N,) of the rows of all ranks.
        previous: (N,) the previous assignments of these rows, for stability; -1: none.
        classes: (N,) their true classes, when there are any.

    Returns:
        ``size_min``, ``_median`` and ``_max``; ``largest_share``, of all rows;
        ``empty`` at the end and ``reseeded`` before; ``cosine``, the mean
        cosine to the center, or, if not spherical, ``squared_distance``, its mean; and,
        if given, ``nmi_previous``, of the rows that were assigned before, and ``nmi_classes``.

    Raises:
        ValueError: when the labelings are not integer vectors of one length.
    """
    count = len(assignments)
    sizes = torch.bincount(assignments, minlength=len(clustering.centers))
    metrics = {
        "size_min": float(sizes.min()),
        "size_median": float(sizes.double().quantile(0.5)),
        "size_max": float(sizes.max()),
        "largest_share": float(sizes.max()) / count,
        "empty": float((sizes == 0).sum()),
        "reseeded": float(clustering.reseeded),
    }
    if clustering.metric == "spherical":
        metrics["cosine"] = 1 - clustering.inertia / count / 2
    else:
        metrics["squared_distance"] = clustering.inertia / count
    if previous is not None and bool((known := previous >= 0).any()):
        metrics["nmi_previous"] = normalized_mutual_information(assignments[known], previous[known])
    if classes is not None:
        metrics["nmi_classes"] = normalized_mutual_information(assignments, classes)
    return metrics
