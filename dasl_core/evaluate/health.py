"""Metrics of the health of a representation, which need no labels."""

import math

import numpy as np
import torch
from torch import Tensor

from dasl_core import tensors


@torch.no_grad()
def effective_rank(x: Tensor | np.ndarray) -> float:
    """Effective rank (RankMe): ``exp`` of the entropy of the normalized singular values of (N, d) features.

    It ranges from 1 (all features on one line: total collapse) to min(N, d), and is 0 if all features
    are zero. The features are neither centered nor normalized (Garrido et al., "RankMe", ICML 2023,
    eq. 1).

    The singular values are the roots of the eigenvalues of the smaller Gram matrix, which is summed
    in float64 over blocks. For many samples that takes d x d numbers and a fraction of the time of
    a decomposition of all features. Eigenvalues within the rounding error of float64 count as zero.
    """
    x = tensors.feature_matrix(x, "x")
    if x.shape[0] < x.shape[1]:
        x = x.t()
    width = x.shape[1]
    largest = max(float(x[rows].abs().max()) for rows in tensors.tiles(*x.shape))
    if largest == 0:
        return 0.0
    gram = torch.zeros(width, width, dtype=torch.float64, device=x.device)
    for rows in tensors.tiles(x.shape[0], width):
        # Scaling does not change the rank, and keeps the squares from overflow and underflow.
        block = x[rows].double() / largest
        gram.addmm_(block.t(), block)
    eigenvalues: Tensor = torch.linalg.eigvalsh(gram)
    noise = width * torch.finfo(torch.float64).eps * eigenvalues[-1]
    singular_values = eigenvalues.masked_fill(eigenvalues < noise, 0).sqrt()
    share = singular_values / singular_values.sum()
    return math.exp(float(torch.special.entr(share).sum()))


@torch.no_grad()
def alignment(a: Tensor | np.ndarray, b: Tensor | np.ndarray) -> float:
    """Mean squared distance of the L2-normalized features (N, d) of two views of the same samples.

    It ranges from 0 (the views agree) to 4 (Wang and Isola, "Understanding Contrastive Representation Learning
    through Alignment and Uniformity on the Hypersphere", ICML 2020, with alpha = 2).
    """
    first = tensors.feature_matrix(a, "a")
    second = tensors.feature_matrix(b, "b")
    if first.shape != second.shape:
        raise ValueError(
            f"b must have the shape of a, {tuple(first.shape)}; given {tuple(second.shape)}"
        )
    total = torch.zeros((), dtype=torch.float64, device=first.device)
    for rows in tensors.tiles(*first.shape):
        difference = tensors.unit_rows(first[rows]) - tensors.unit_rows(second[rows]).to(first)
        total += difference.square().sum(dtype=torch.float64)
    return float(total) / first.shape[0]


@torch.no_grad()
def uniformity(x: Tensor | np.ndarray) -> float:
    """Uniformity: ``log mean exp(-2 ||x_i - x_j||^2)`` over the pairs of L2-normalized features (N, d).

    It ranges from about -4 (spread evenly over the sphere) to 0 (all in one point); Wang and Isola,
    2020, t = 2. Rows of zeros have no direction and count as one point at the origin.
    """
    x = tensors.feature_matrix(x, "x", min_rows=2)
    num_samples = x.shape[0]
    total = torch.zeros((), dtype=torch.float64, device=x.device)
    with tensors.exact_products(x.device):
        for rows, columns in tensors.pair_tiles(num_samples):
            first, second = (tensors.unit_rows(x[part]) for part in (rows, columns))
            potential = tensors.squared_distances(first, second).mul_(-2).exp_()
            if rows == columns:
                potential.triu_(1)
            total += potential.sum(dtype=torch.float64)
    return math.log(2 * float(total) / (num_samples * (num_samples - 1)))


@torch.no_grad()
def dimension_std(x: Tensor | np.ndarray) -> float:
    """Standard deviation of a dimension of the L2-normalized features (N, d), mean over dimensions.

    Evenly spread features have about ``1/sqrt(d)``; far smaller values mean collapse (Chen and He,
    "Exploring Simple Siamese Representation Learning", CVPR 2021).
    """
    _, std = tensors.mean_and_std(tensors.feature_matrix(x, "x"), tensors.unit_rows)
    return float(std.mean())


@torch.no_grad()
def mean_norm(x: Tensor | np.ndarray) -> float:
    """Mean Euclidean length of the raw features (N, d)."""
    x = tensors.feature_matrix(x, "x")
    total = torch.zeros((), dtype=torch.float64, device=x.device)
    for rows in tensors.tiles(*x.shape):
        total += torch.linalg.vector_norm(x[rows].double(), dim=1).sum()
    return float(total) / x.shape[0]
