"""Distances between samples of different classes, which the theory of DAR bounds."""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from dasl_core import tensors

# Quantiles come, to 2^-16, from a histogram of [0, 2], whose size does not grow with the pairs.
BINS = 1 << 17
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


@torch.no_grad()
def inter_class_distances(x: Tensor | np.ndarray, y: Tensor | np.ndarray) -> dict[str, float]:
    """Statistics of the distances between L2-normalized features of samples with different labels.

    The theorems of Chen et al. (DASL, ICLR 2024) are about these distances ``d = ||x_i - x_j||`` for x = phi,
    the embeddings of the loss.
    Theorem 2 bounds the difference |d(x, x') - d(z, z')| of any two of them, which DAR lowers:
    `max_difference` is the largest difference and `std` a typical one. Theorem 3 bounds the
    generalization error by a product with the factor `log_factor`. If all labels differ, all pairs
    count. Rows of zeros have no direction and count as one point at the origin.

    Args:
        x: (N, d) features.
        y: (N,) integer labels, of at least two values.

    Returns:
        ``mean``, ``variance``, ``std``, ``min`` and ``max`` of the distances, each pair once;
        ``q01``, ``q05``, ``q25``, ``q50``, ``q75``, ``q95``, ``q99``, their quantiles, to 2e-5;
        ``max_difference``, max - min; and ``log_factor``, log(1 + max).

    Raises:
        ValueError: shapes do not fit, or all samples have one label.
    """
    x, y = _checked(x, y)
    total, squares, largest = torch.zeros(3, dtype=torch.float64, device=x.device)
    smallest = torch.full_like(largest, torch.inf)
    histogram = torch.zeros(BINS, dtype=torch.int64, device=x.device)
    for distances in _distances(x, y):
        total += distances.sum()
        squares += distances.square().sum()
        smallest = torch.minimum(smallest, distances.min())
        largest = torch.maximum(largest, distances.max())
        histogram += _counts(distances, BINS)
    count = int(histogram.sum())
    low, high = float(smallest), float(largest)
    mean = float(total) / count
    variance = max(0.0, float(squares) / count - mean**2)
    return {
        "mean": mean,
        "variance": variance,
        "std": math.sqrt(variance),
        "min": low,
        "max": high,
        **{
            f"q{round(100 * share):02d}": min(max(value, low), high)
            for share, value in zip(QUANTILES, _quantiles(histogram.cpu()), strict=True)
        },
        "max_difference": high - low,
        "log_factor": math.log1p(high),
    }


@torch.no_grad()
def distance_histogram(
    x: Tensor | np.ndarray, y: Tensor | np.ndarray, bins: int
) -> tuple[list[int], float]:
    """Histogram over [0, 2] of the distances of `inter_class_distances`, with its errors, and their mean."""
    x, y = _checked(x, y)
    counts, total = torch.zeros(bins, dtype=torch.int64, device=x.device), 0.0
    for distances in _distances(x, y):
        total += float(distances.sum())
        counts += _counts(distances, bins)
    return counts.tolist(), total / int(counts.sum())


def _checked(x: Tensor | np.ndarray, y: Tensor | np.ndarray) -> tuple[Tensor, Tensor]:
    x = tensors.feature_matrix(x, "x", min_rows=2)
    y = tensors.label_vector(y, "y", x.shape[0], x.device)
    if bool((y == y[0]).all()):
        raise ValueError("y must hold at least two different labels; all are equal")
    return x, y


def _distances(x: Tensor, y: Tensor) -> Iterator[Tensor]:
    """Yield the distances between normalized rows with different labels, each pair once, tile by tile."""
    with tensors.exact_products(x.device):
        for rows, columns in tensors.pair_tiles(x.shape[0]):
            # Products in float64, because in float32 a distance near 0 would be off by 5e-4.
            first, second = (tensors.unit_rows(x[part].double()) for part in (rows, columns))
            differ = y[rows, None] != y[columns]
            if rows == columns:
                differ = differ.triu(1)
            distances = tensors.squared_distances(first, second)[differ].clamp_(0, 4).sqrt_()
            if distances.numel():
                yield distances


def _counts(distances: Tensor, bins: int) -> Tensor:
    return torch.bincount((distances * (bins / 2)).long().clamp_(max=bins - 1), minlength=bins)


def _quantiles(histogram: Tensor) -> list[float]:
    """Return the center of each quantile's bin."""
    cumulative = histogram.cumsum(0)
    ranks = torch.tensor(QUANTILES, dtype=torch.float64) * (cumulative[-1] - 1)
    bins = torch.searchsorted(cumulative, ranks.round().long(), right=True)
    values: list[float] = ((bins.double() + 0.5) * (2 / BINS)).tolist()
    return values
