"""Clustering of features."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from dasl_core.clustering import cluster
from dasl_core.evaluate import inputs


def kmeans(
    x: Tensor | np.ndarray, k: int, seed: int = 0, max_iterations: int = 100
) -> tuple[Tensor, Tensor]:
    """Euclidean k-means of features that this process holds all of; see `dasl_core.clustering`.

    Args:
        x: (N, d) points, taken as they are (normalise them for cosine clusters).
        k: clusters, from 1 to N.
        seed: of the start.
        max_iterations: it ends earlier once no point changes its cluster.

    Returns:
        The cluster of each point, (N,) int64, and the centres, (k, d).

    Raises:
        ValueError: when an argument does not fit; the message names it.
    """
    x = inputs.features(x, "x")
    inputs.whole_number(k, "k")
    inputs.whole_number(max_iterations, "max_iterations")
    found = cluster(
        x,
        k,
        metric="euclidean",
        seed=seed,
        max_iterations=max_iterations,
        distributed=False,
    )
    return found.assignments, found.centres
