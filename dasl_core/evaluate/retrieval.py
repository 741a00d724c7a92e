"""Retrieval: is a sample of the same class among the nearest others?"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from dasl_core.evaluate import inputs


@torch.no_grad()
def recall_at_k(
    x: Tensor | np.ndarray, y: Tensor | np.ndarray, ks: Iterable[int]
) -> dict[int, float]:
    """R@K for each K: the share of samples with one of their class among their K nearest others.

    Nearness is cosine similarity. A sample is never its own neighbour. Every sample is a query, so
    one that is alone in its class counts as missed at every K, as in the published figures.

    Args:
        x: (N, d) features, N >= 2.
        y: (N,) integer classes.
        ks: the Ks, each at least 1; one of N - 1 or more looks at all others.

    Returns:
        ``{K: recall}`` in the order of `ks`, recall from 0 to 1.

    Raises:
        ValueError: when shapes or numbers do not fit; the message names the argument.
    """
    x = inputs.unit_rows(inputs.features(x, "x", min_rows=2))
    num_samples = x.shape[0]
    y = inputs.labels(y, "y", num_samples, x.device)
    ks = list(ks)
    if not ks or min(ks) < 1:
        raise ValueError(f"ks must hold numbers of at least 1; given {ks}")

    depth = min(max(ks), num_samples - 1)
    # found[r]: queries whose nearest hit has the rank r (from 0).
    found = torch.zeros(depth, dtype=torch.int64, device=x.device)
    with torch.autocast(x.device.type, enabled=False):
        for rows in inputs.tiles(num_samples, num_samples):
            similarity = x[rows] @ x.t()
            similarity.diagonal(offset=rows.start).fill_(-torch.inf)
            hit = y[similarity.topk(depth, dim=1).indices] == y[rows, None]
            first_hit = hit.int().argmax(dim=1)[hit.any(dim=1)]
            found += torch.bincount(first_hit, minlength=depth)
    recalled: list[int] = found.cumsum(0).tolist()
    return {k: recalled[min(k, depth) - 1] / num_samples for k in ks}
