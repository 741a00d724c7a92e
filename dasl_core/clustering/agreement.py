"""Metrics of clusterings: agreement with classes (NMI and pairwise F1), and quality of pseudo-labels."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from dasl_core import tensors
from dasl_core.clustering.kmeans import Clustering, kmeans


def nmi(x: Tensor | np.ndarray, y: Tensor | np.ndarray, seed: int = 0, restarts: int = 10) -> float:
    """NMI, from 0 to 1, of features (N, d) and classes (N,); arguments and errors as of `clustering_metrics`."""
    return clustering_metrics(x, y, seed, restarts)["nmi"]


def clustering_metrics(
    x: Tensor | np.ndarray,
    y: Tensor | np.ndarray,
    seed: int = 0,
    restarts: int = 10,
    on_start: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Cluster `x` (N, d) by k-means with one cluster for each class of `y`, and compare the two.

    Rows are L2-normalized first. This is the protocol of metric learning (Song et al., "Deep Metric Learning
    via Lifted Structured Feature Embedding", CVPR 2016). Of `restarts` runs of k-means, the result with the
    smallest inertia counts, as with scikit-learn's ten in the SEC paper's code. `on_start` is called before
    each run. `seed` is that of the k-means++ initializations; the result depends only on the arguments.

    Returns:
        ``nmi``, ``pairwise_f1``, ``pairwise_precision``, ``pairwise_recall``, each from 0 to 1.

    Raises:
        ValueError: shapes or numbers do not fit; the message names the argument.
    """
    x = tensors.unit_rows(tensors.feature_matrix(x, "x"))
    y = tensors.label_vector(y, "y", x.shape[0], x.device)
    classes = int(torch.unique(y).numel())
    clusters, _ = kmeans(x, classes, seed=seed, restarts=restarts, on_start=on_start)
    precision, recall = pairwise_precision_recall(clusters, y)
    return {
        "nmi": normalized_mutual_information(clusters, y),
        "pairwise_f1": pairwise_f1(clusters, y),
        "pairwise_precision": precision,
        "pairwise_recall": recall,
    }


def normalized_mutual_information(a: Tensor | np.ndarray, b: Tensor | np.ndarray) -> float:
    """Normalized mutual information of two labelings (N,): ``2 I(a; b) / (H(a) + H(b))``.

    It is 1 if both are constant.

    Raises:
        ValueError: they are not integer vectors of one length.
    """
    joint, (a_of_pair, b_of_pair), a_sizes, b_sizes = _contingency(a, b, ("a", "b"))
    num_samples = a_sizes.sum()
    p_a, p_b = a_sizes.double() / num_samples, b_sizes.double() / num_samples
    p_joint = joint.double() / num_samples
    independent = p_a[a_of_pair] * p_b[b_of_pair]
    information = float((p_joint * (p_joint / independent).log()).sum())
    entropies = -float((p_a * p_a.log()).sum()) - float((p_b * p_b.log()).sum())
    if entropies == 0:
        return 1.0
    return min(1.0, max(0.0, 2 * information / entropies))


def pairwise_f1(clusters: Tensor | np.ndarray, classes: Tensor | np.ndarray) -> float:
    """F1 over all pairs of samples (N,): pairs in one cluster predict pairs in one class.

    ``2 TP / (pairs in one cluster + pairs in one class)``, from 0 to 1, computed from integer counts; 1
    if neither labeling joins any two samples.

    Raises:
        ValueError: they are not integer vectors of one length.
    """
    in_both, in_cluster, in_class = _pair_counts(clusters, classes)
    return 2 * in_both / (in_cluster + in_class) if in_cluster + in_class else 1.0


def pairwise_precision_recall(
    clusters: Tensor | np.ndarray, classes: Tensor | np.ndarray
) -> tuple[float, float]:
    """Precision and recall of the pairs in one cluster as predictions of the pairs in one class.

    A fraction of no pairs is 0; both are 1 if neither labeling joins any two samples.

    Raises:
        ValueError: they are not integer vectors of one length.
    """
    in_both, in_cluster, in_class = _pair_counts(clusters, classes)
    if not in_cluster and not in_class:
        return 1.0, 1.0
    return (
        in_both / in_cluster if in_cluster else 0.0,
        in_both / in_class if in_class else 0.0,
    )


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


def _pair_counts(
    clusters: Tensor | np.ndarray, classes: Tensor | np.ndarray
) -> tuple[int, int, int]:
    """Count the pairs that share both a cluster and a class, a cluster, and a class."""
    joint, _, sizes, class_sizes = _contingency(clusters, classes, ("clusters", "classes"))

    def pairs(counts: Tensor) -> int:
        return int((counts * (counts - 1) // 2).sum())

    return pairs(joint), pairs(sizes), pairs(class_sizes)


def _contingency(
    a: Tensor | np.ndarray, b: Tensor | np.ndarray, names: tuple[str, str]
) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor, Tensor]:
    """Sparse contingency table: counts of the pairs that occur, their values (from 0), and marginals.

    A dense table would be too large: 10^8 entries for Stanford Online Products.
    """
    if a.ndim != 1 or a.shape[0] == 0:
        raise ValueError(f"{names[0]} must have the shape (N,) with N >= 1; given {tuple(a.shape)}")
    num_samples = a.shape[0]
    cpu = torch.device("cpu")
    a_index = torch.unique(
        tensors.label_vector(a, names[0], num_samples, cpu), return_inverse=True
    )[1]
    b_index = torch.unique(
        tensors.label_vector(b, names[1], num_samples, cpu), return_inverse=True
    )[1]
    a_sizes, b_sizes = torch.bincount(a_index), torch.bincount(b_index)
    pairs, counts = torch.unique(a_index * b_sizes.numel() + b_index, return_counts=True)
    return counts, (pairs // b_sizes.numel(), pairs % b_sizes.numel()), a_sizes, b_sizes
