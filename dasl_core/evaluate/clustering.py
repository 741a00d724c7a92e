"""Clustering quality: k-means on the features, compared with the classes."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from dasl_core.evaluate import inputs


def nmi(x: Tensor | np.ndarray, y: Tensor | np.ndarray, seed: int = 0) -> float:
    """NMI between the classes `y` and a k-means clustering of `x` with as many clusters as classes.

    Rows are L2-normalised first, as for every other measure here. The result is from 0 to 1 and
    depends on nothing but the arguments.

    Args:
        x: (N, d) features.
        y: (N,) integer classes.
        seed: of the k-means++ initialisation.

    Raises:
        ValueError: when shapes or numbers do not fit; the message names the argument.
    """
    x = inputs.unit_rows(inputs.features(x, "x"))
    y = inputs.labels(y, "y", x.shape[0], x.device)
    clusters, _ = kmeans(x, int(torch.unique(y).numel()), seed=seed)
    return normalized_mutual_information(clusters, y)


def normalized_mutual_information(a: Tensor | np.ndarray, b: Tensor | np.ndarray) -> float:
    """``2 I(a; b) / (H(a) + H(b))`` of two labellings (N,) of the same samples; 1 if both are constant.

    Raises:
        ValueError: when they are not integer vectors of one length.
    """
    if a.ndim != 1 or a.shape[0] == 0:
        raise ValueError(f"a must have the shape (N,) with N >= 1; given {tuple(a.shape)}")
    num_samples = a.shape[0]
    cpu = torch.device("cpu")
    a_index = torch.unique(inputs.labels(a, "a", num_samples, cpu), return_inverse=True)[1]
    b_index = torch.unique(inputs.labels(b, "b", num_samples, cpu), return_inverse=True)[1]
    p_a = torch.bincount(a_index).double() / num_samples
    p_b = torch.bincount(b_index).double() / num_samples
    # Only the pairs of values that occur: a full contingency table of SOP has 10^8 entries.
    pairs, counts = torch.unique(a_index * p_b.numel() + b_index, return_counts=True)
    joint = counts.double() / num_samples
    independent = p_a[pairs // p_b.numel()] * p_b[pairs % p_b.numel()]
    information = float((joint * (joint / independent).log()).sum())
    entropies = -float((p_a * p_a.log()).sum()) - float((p_b * p_b.log()).sum())
    if entropies == 0:
        return 1.0
    return min(1.0, max(0.0, 2 * information / entropies))


@torch.no_grad()
def kmeans(
    x: Tensor | np.ndarray, k: int, seed: int = 0, max_iterations: int = 100
) -> tuple[Tensor, Tensor]:
    """Lloyd's k-means from a greedy k-means++ start (Arthur and Vassilvitskii, 2007).

    Args:
        x: (N, d) points, taken as they are (normalise them for cosine clusters).
        k: clusters, from 1 to N.
        seed: of the start. Random numbers are drawn on the CPU, so every device starts alike.
        max_iterations: of Lloyd's algorithm, which ends earlier once no point changes its cluster.

    Returns:
        The cluster of each point, (N,) int64, and the centres, (k, d).

    Raises:
        ValueError: when `x` or `k` do not fit; the message names the argument.
    """
    x = inputs.features(x, "x")
    num_points = x.shape[0]
    if not 1 <= k <= num_points:
        raise ValueError(f"k must be from 1 to the number of points, {num_points}; given {k}")
    with torch.autocast(x.device.type, enabled=False):
        centres = _plus_plus_centres(x, k, torch.Generator().manual_seed(seed))
        cluster, distance = _nearest(x, centres)
        for _ in range(max_iterations):
            centres = _means(x, cluster, distance, k)
            previous = cluster
            cluster, distance = _nearest(x, centres)
            if torch.equal(cluster, previous):
                break
    return cluster, centres


def _plus_plus_centres(x: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """Each next centre is a point drawn with probability ~ squared distance to the centres so far.

    As in scikit-learn, of 2 + ln k such draws the one that lowers the total most is taken.
    """
    draws = 2 + int(math.log(k))
    first = int(torch.randint(x.shape[0], (1,), generator=generator))
    chosen = [first]
    squared_norms = x.square().sum(dim=1)
    nearest = _squared_distances(x, squared_norms, torch.tensor([first], device=x.device))[0]
    for _ in range(1, k):
        cumulative = nearest.double().cumsum(0)
        draw = torch.rand(draws, generator=generator, dtype=torch.float64).to(x.device)
        candidates = torch.searchsorted(cumulative, draw * cumulative[-1], right=True)
        candidates.clamp_(max=x.shape[0] - 1)
        lowered = _squared_distances(x, squared_norms, candidates).minimum(nearest)
        best = lowered.sum(dim=1).argmin()
        nearest = lowered[best]
        chosen.append(int(candidates[best]))
    return x[chosen]


def _squared_distances(x: Tensor, squared_norms: Tensor, points: Tensor) -> Tensor:
    """(P, N) squared distances from the given points of x to all of x."""
    inner = x[points] @ x.t()
    return (squared_norms[points, None] + squared_norms - 2 * inner).clamp_(min=0)


def _nearest(x: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Index of and squared distance to the nearest centre of every point, (N,) each."""
    cluster = torch.empty(x.shape[0], dtype=torch.int64, device=x.device)
    distance = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    half_squared_norms = centres.square().sum(dim=1) / 2
    for rows in inputs.tiles(x.shape[0], centres.shape[0]):
        # ||x - c||^2 / 2 without its constant ||x||^2 / 2
        score, cluster[rows] = (half_squared_norms - x[rows] @ centres.t()).min(dim=1)
        distance[rows] = 2 * score + x[rows].square().sum(dim=1)
    return cluster, distance.clamp_(min=0)


def _means(x: Tensor, cluster: Tensor, distance: Tensor, k: int) -> Tensor:
    """Mean of each cluster; an empty one gets a point that lies farthest from its centre."""
    sizes = torch.bincount(cluster, minlength=k)
    sums = x.new_zeros(k, x.shape[1]).index_add_(0, cluster, x)
    centres = sums / sizes.clamp(min=1).unsqueeze(1)
    empty = (sizes == 0).nonzero().squeeze(1)
    if empty.numel():
        centres[empty] = x[distance.topk(empty.numel()).indices]
    return centres
