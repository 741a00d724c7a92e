"""Is a representation healthy? Figures that need no labels, or only tell which pairs to compare."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from dasl_core.evaluate import inputs


@torch.no_grad()
def effective_rank(x: Tensor | np.ndarray) -> float:
    """RankMe: ``exp`` of the entropy of the normalised singular values of the features (N, d).

    From 1, all features on one line (total collapse), to min(N, d); 0 if all are zero. The features
    are neither centred nor normalised (Garrido et al., "RankMe", ICML 2023).
    """
    singular_values: Tensor = torch.linalg.svdvals(inputs.features(x, "x").double())
    total = singular_values.sum()
    if float(total) == 0:
        return 0.0
    share = singular_values / total
    return math.exp(float(torch.special.entr(share).sum()))


@torch.no_grad()
def alignment(a: Tensor | np.ndarray, b: Tensor | np.ndarray) -> float:
    """Mean squared distance of the L2-normalised features (N, d) of two views of the same samples.

    From 0, views agree, to 4 (Wang and Isola, "Understanding Contrastive Representation Learning
    through Alignment and Uniformity on the Hypersphere", ICML 2020, with alpha = 2).
    """
    first = inputs.features(a, "a")
    second = inputs.features(b, "b")
    if first.shape != second.shape:
        raise ValueError(
            f"b must have the shape of a, {tuple(first.shape)}; given {tuple(second.shape)}"
        )
    difference = inputs.unit_rows(first) - inputs.unit_rows(second).to(first)
    return float(difference.square().sum(dim=1).mean())


@torch.no_grad()
def uniformity(x: Tensor | np.ndarray) -> float:
    """``log mean exp(-2 ||x_i - x_j||^2)`` over all pairs i < j of L2-normalised features (N, d).

    From about -4, spread evenly over the sphere, to 0, all in one point (Wang and Isola, 2020, t = 2).
    """
    x = inputs.unit_rows(inputs.features(x, "x", min_rows=2))
    num_samples = x.shape[0]
    total = torch.zeros((), dtype=torch.float64, device=x.device)
    with torch.autocast(x.device.type, enabled=False):
        for rows in inputs.tiles(num_samples, num_samples):
            # On the sphere, -2 ||a - b||^2 = 4 (a.b - 1).
            potential = (4 * (x[rows] @ x.t() - 1)).exp()
            potential.diagonal(offset=rows.start).zero_()
            total += potential.sum(dtype=torch.float64)
    return math.log(float(total) / (num_samples * (num_samples - 1)))


@torch.no_grad()
def dimension_std(x: Tensor | np.ndarray) -> float:
    """Standard deviation of the L2-normalised features (N, d) along a dimension, mean over dimensions.

    Evenly spread features have about ``1/sqrt(d)``; far below it, they are collapsing (Chen and He,
    "Exploring Simple Siamese Representation Learning", CVPR 2021).
    """
    x = inputs.unit_rows(inputs.features(x, "x"))
    return float(x.std(dim=0, correction=0).mean())


@torch.no_grad()
def mean_norm(x: Tensor | np.ndarray) -> float:
    """Mean Euclidean length of the raw features (N, d)."""
    norms: Tensor = torch.linalg.vector_norm(inputs.features(x, "x"), dim=1)
    return float(norms.mean())


@torch.no_grad()
def inter_class_distances(x: Tensor | np.ndarray, y: Tensor | np.ndarray) -> dict[str, float]:
    """Distances between L2-normalised features (N, d) of samples with different labels (N,).

    These are what the theory of DAR bounds: it aligns the distances, so `std` and `max_difference`
    fall. Tell every sample by its index to compare all pairs.

    Returns:
        ``mean``, ``std`` and ``variance`` of the distances, their ``max``, and ``max_difference``,
        the largest minus the smallest.

    Raises:
        ValueError: when shapes do not fit, or all samples have one label.
    """
    x = inputs.unit_rows(inputs.features(x, "x", min_rows=2))
    num_samples = x.shape[0]
    y = inputs.labels(y, "y", num_samples, x.device)
    if bool((y == y[0]).all()):
        raise ValueError("y must hold at least two different labels; all are equal")
    count, total, squares, smallest, largest = 0, 0.0, 0.0, math.inf, 0.0
    with torch.autocast(x.device.type, enabled=False):
        for rows in inputs.tiles(num_samples, num_samples):
            tile = torch.cdist(x[rows], x, compute_mode="donot_use_mm_for_euclid_dist")
            distances = tile[y[rows, None] != y].double()
            if distances.numel() == 0:
                continue
            count += distances.numel()
            total += float(distances.sum())
            squares += float(distances.square().sum())
            smallest = min(smallest, float(distances.min()))
            largest = max(largest, float(distances.max()))
    mean = total / count
    variance = max(0.0, squares / count - mean**2)
    return {
        "mean": mean,
        "variance": variance,
        "std": math.sqrt(variance),
        "max": largest,
        "max_difference": largest - smallest,
    }
