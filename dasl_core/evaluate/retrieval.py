"""Retrieval: is a sample of the same class among the nearest others?"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from dasl_core import tensors


@torch.no_grad()
def recall_at_k(
    x: Tensor | np.ndarray, y: Tensor | np.ndarray, ks: Iterable[int]
) -> dict[int, float]:
    """R@K for each K: the share of samples with one of their class among their K nearest others.

    Nearness is cosine similarity. A sample is never its own neighbour. Every sample is a query, so
    one that is alone in its class counts as missed at every K, as in the published figures. Of others
    that are equally near, the one that comes first in `x` is the nearer.

    Nothing is ranked: a query is found at K if fewer than K samples of other classes are nearer than
    the nearest of its own. So a large K costs nothing, and memory is that of a few tiles.

    Args:
        x: (N, d) features, N >= 2.
        y: (N,) integer classes.
        ks: the Ks, each at least 1; one of N - 1 or more looks at all others.

    Returns:
        ``{K: recall}`` in the order of `ks`, recall from 0 to 1.

    Raises:
        ValueError: when shapes or numbers do not fit; the message names the argument.
    """
    given = ks
    x = tensors.feature_matrix(x, "x", min_rows=2)
    num_samples = x.shape[0]
    y = tensors.label_vector(y, "y", num_samples, x.device)
    ks = list(ks) if isinstance(ks, Iterable) else []
    if not ks or not all(isinstance(k, int | np.integer) and k >= 1 for k in ks):
        raise ValueError(
            f"ks must be a list of whole numbers of at least 1, such as [1, 5]; given {given!r}"
        )

    # In the order of classes, a block's own classes are a range of columns.
    order = torch.argsort(y, stable=True)
    y = y[order]
    bounds = y.cpu().numpy()
    found = torch.zeros(len(ks), dtype=torch.int64, device=x.device)
    limits = torch.tensor(ks, device=x.device)
    with tensors.exact_products(x.device):
        for rows in tensors.blocks(num_samples):
            queries = tensors.unit_rows(x[order[rows]])
            first = int(np.searchsorted(bounds, bounds[rows.start], side="left"))
            last = int(np.searchsorted(bounds, bounds[rows.stop - 1], side="right"))
            nearest = queries.new_full((len(queries),), -torch.inf)
            position = torch.zeros_like(y[rows])
            for columns in tensors.blocks(last, start=first):
                similarity = queries @ tensors.unit_rows(x[order[columns]]).t()
                similarity.masked_fill_(y[rows, None] != y[columns], -torch.inf)
                similarity.diagonal(rows.start - columns.start).fill_(-torch.inf)
                best, index = similarity.max(dim=1)
                position = torch.where(best > nearest, order[columns][index], position)
                nearest = torch.maximum(nearest, best)
            before = torch.zeros_like(y[rows])
            for columns in tensors.blocks(num_samples):
                similarity = queries @ tensors.unit_rows(x[order[columns]]).t()
                if columns.start < last and columns.stop > first:
                    similarity.masked_fill_(y[rows, None] == y[columns], -torch.inf)
                before += (similarity > nearest[:, None]).sum(dim=1, dtype=torch.int32)
                tied = similarity == nearest[:, None]
                if bool(tied.any()):
                    before += (tied & (order[columns] < position[:, None])).sum(dim=1)
            in_company = nearest.isfinite()[:, None]
            hit = in_company & (before[:, None] < limits)
            found += hit.sum(dim=0)
    return {k: count / num_samples for k, count in zip(ks, found.tolist(), strict=True)}
