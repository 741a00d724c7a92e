"""Quality metrics of the clustering for DAR's pseudo-labels."""

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
    """Compute the metrics of a clustering, by name.

    Args:
        clustering: result of `cluster` on this rank.
        assignments: (N,) clusters of the rows of all ranks.
        previous: (N,) previous clusters of these rows, to measure stability; -1 for none.
        classes: (N,) true classes of these rows.

    Returns:
        ``size_min``, ``size_median`` and ``size_max``; ``largest_share``, the fraction of all rows in
        the largest cluster; ``empty``, the number of empty clusters, and ``reseeded``, the number
        filled again; the mean ``cosine`` to the center, or, if not spherical, the mean
        ``squared_distance``; ``nmi_previous`` of the rows with a previous cluster, if there are any;
        ``nmi_classes`` if there are classes.

    Raises:
        ValueError: the labelings are not integer vectors of one length.
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
    if previous is not None and bool((seen := previous >= 0).any()):
        metrics["nmi_previous"] = normalized_mutual_information(assignments[seen], previous[seen])
    if classes is not None:
        metrics["nmi_classes"] = normalized_mutual_information(assignments, classes)
    return metrics
