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
    """Figures of a clustering, by the names they are logged under.

    Args:
        found: what `cluster` gave on this rank.
        assignments: (N,) of the rows of all ranks.
        previous: (N,) what these rows were assigned to before, for stability.
        classes: (N,) their true classes, when there are any.

    Returns:
        ``clusters_size_min``, ``_median`` and ``_max``; ``clusters_largest_share``, of all rows;
        ``clusters_empty`` now and ``clusters_reseeded`` on the way; ``clusters_cosine``, the mean
        cosine to the own centre, or, if not spherical, ``clusters_squared_distance``, its mean; and,
        if given, ``clusters_nmi_previous`` and ``clusters_nmi_classes``.

    Raises:
        ValueError: when the labellings are not integer vectors of one length.
    """
    count = len(assignments)
    sizes = torch.bincount(assignments, minlength=len(found.centres))
    figures = {
        "clusters_size_min": float(sizes.min()),
        "clusters_size_median": float(sizes.double().quantile(0.5)),
        "clusters_size_max": float(sizes.max()),
        "clusters_largest_share": float(sizes.max()) / count,
        "clusters_empty": float((sizes == 0).sum()),
        "clusters_reseeded": float(found.reseeded),
    }
    if found.metric == "spherical":
        figures["clusters_cosine"] = 1 - found.inertia / count / 2
    else:
        figures["clusters_squared_distance"] = found.inertia / count
    if previous is not None:
        figures["clusters_nmi_previous"] = normalized_mutual_information(assignments, previous)
    if classes is not None:
        figures["clusters_nmi_classes"] = normalized_mutual_information(assignments, classes)
    return figures
