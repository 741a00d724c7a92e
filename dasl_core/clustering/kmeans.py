"""k-means over features that are distributed over the ranks, for DAR's pseudo-labels.

Every rank holds some rows of the bank and gets their clusters; sums and counts are reduced over ranks.
The result does not depend on the number of ranks or the distribution of rows: the initial centers are
drawn by the rows' positions in the whole bank, and all sums are in float64.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from dasl_core import tensors
from dasl_core.distributed import group_rank, group_size
from dasl_core.seeds import derive_seed
from dasl_core.tensors import check_choice, check_matrix, full_precision

Metric = Literal["spherical", "euclidean"]

# Entries of a tile of scores (32 MiB in float32) and of a tile of rows (8 MiB in float64).
_SCORE_ENTRIES = 1 << 23
_SUM_ENTRIES = 1 << 20

# Candidates for the initial centers per cluster, at most: drawing a thousand centers from 1.3 million points
# would take longer than all iterations.
_START_POINTS = 32
# Number of clusters up to which their first centers are drawn by distance, whose time grows with its square; more are
# drawn at random, as faiss does.
_MOST_BY_DISTANCE = 8192


@dataclass(frozen=True)
class Clustering:
    """The result of `cluster`.

    Attributes:
        assignments: (n,) int64, the cluster of each of this rank's rows, on their device.
        centers: (k, d), equal on all ranks; of length 1 when spherical.
        metric: as passed to `cluster`.
        inertia: sum over all ranks' rows of the squared distance to their center; on the sphere that
            is 2 (1 - cosine).
        reseeded: number of times that an empty cluster got a new center.
        iterations: number of iterations of Lloyd's algorithm.
    """

    assignments: Tensor
    centers: Tensor
    metric: Metric
    inertia: float
    reseeded: int
    iterations: int


@torch.no_grad()
def cluster(
    bank: Tensor,
    k: int,
    *,
    metric: Metric = "spherical",
    seed: int = 0,
    max_iterations: int = 50,
    positions: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
    on_iteration: Callable[[], object] = lambda: None,
) -> Clustering:
    """Cluster the rows of all ranks in `group` by k-means, initialized with greedy k-means++, at random beyond 8,192 clusters.

    Lloyd's algorithm (Arthur and Vassilvitskii, 2007, for the initialization) runs until no row
    changes its cluster, or for `max_iterations`. A cluster without points gets the point farthest
    from its center, over all ranks. Every rank of `group` must call this. Memory in addition to the bank:
    a normalized copy when spherical, 32 points per cluster for the initialization, and tiles of constant
    size; never all rows times all clusters.

    Args:
        bank: (n, d), this rank's rows, on any device; ranks may hold different numbers of them.
            Half and bfloat16 are computed in float32.
        k: from 1 to the number of rows of all ranks.
        metric: ``"spherical"``: only the direction of a row counts, centers have length 1, and the
            nearest center is the one with the largest cosine (Dhillon and Modha, 2001).
            ``"euclidean"``: rows as they are.
        seed: seed of the initialization. Numbers are drawn on the CPU, the same for every device and rank.
        max_iterations: iterations of Lloyd's algorithm, at least 1.
        positions: (n,) int64, the positions of this rank's rows in the whole bank, from 0, which make the result
            independent of the distribution of rows. None: this rank's rows follow those of previous ranks.
            group: process group whose ranks each hold a part of the bank; None: this process holds all.
        on_iteration: called before each iteration of Lloyd's algorithm.

    Raises:
        ValueError: an argument is invalid, or rows are NaN or infinite; raised on all ranks.
    """
    check_matrix("bank", bank, "(n, d)")
    check_choice("metric", metric, get_args(Metric))
    if max_iterations < 1:
        raise ValueError(f"max_iterations must be at least 1; given {max_iterations}")
    with torch.autocast(bank.device.type, enabled=False):
        x = full_precision(bank.detach())
        points = _Points(x, metric, group)
        points.set_positions(positions)
        points.check(k)
        centers = points.start(k, seed)
        assignments, distances = points.nearest(centers)
        reseeded, iterations, changed = 0, 0, True
        while changed and iterations < max_iterations:
            on_iteration()
            centers, empty = points.means(assignments, k)
            previous = assignments
            assignments, distances = points.nearest(centers)
            changed = bool(points.total((assignments != previous).sum()))
            reseeded, iterations = reseeded + empty, iterations + 1
        inertia = float(points.total(distances.sum(dtype=torch.float64)))
    return Clustering(assignments, centers, metric, inertia, reseeded, iterations)


def kmeans(
    x: Tensor | np.ndarray,
    k: int,
    seed: int = 0,
    max_iterations: int = 100,
    restarts: int = 1,
    on_start: Callable[[], None] = lambda: None,
) -> tuple[Tensor, Tensor]:
    """Euclidean k-means in a single process; see `cluster`.

    Args:
        x: (N, d) points, taken as they are (normalize them for cosine clusters).
        k: clusters, from 1 to N.
        seed: seed of the initializations of all starts.
        max_iterations: stops earlier once no point changes its cluster.
        restarts: number of starts; the clusters with the smallest inertia, the sum of squared
            distances to their centers, are returned, in a tie the first.
        on_start: called before each start.

    Returns:
        The cluster of each point, (N,) int64, and the centers, (k, d).

    Raises:
        ValueError: an argument is invalid; the message names it.
    """
    x = tensors.feature_matrix(x, "x")
    tensors.check_whole_number(k, "k")
    tensors.check_whole_number(max_iterations, "max_iterations")
    tensors.check_whole_number(restarts, "restarts")
    seeds = (seed, *(derive_seed(seed, "k-means", start) for start in range(1, restarts)))

    def start(seed: int) -> Clustering:
        on_start()
        return cluster(x, k, metric="euclidean", seed=seed, max_iterations=max_iterations)

    best = min((start(seed) for seed in seeds), key=lambda clustering: clustering.inertia)
    return best.assignments, best.centers


class _Points:
    """This rank's rows, and computations over the rows of all ranks of a group."""

    def __init__(self, x: Tensor, metric: Metric, group: dist.ProcessGroup | None) -> None:
        self.spherical = metric == "spherical"
        self.x = F.normalize(x, dim=1) if self.spherical else x
        self.group = group
        self.ranks, self.rank = group_size(group), group_rank(group)

    def total(self, tensor: Tensor) -> Tensor:
        """Sum over ranks, in place."""
        if self.ranks > 1:
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def set_positions(self, positions: Tensor | None) -> None:
        """Exchange the numbers of rows, and set the positions of this rank's rows among all."""
        rank = self.rank
        counts = torch.zeros(self.ranks, dtype=torch.int64, device=self.x.device)
        counts[rank] = self.x.shape[0]
        rows_of_ranks = self.total(counts).tolist()
        self.count: int = sum(rows_of_ranks)
        if positions is None:
            first = sum(rows_of_ranks[:rank])
            positions = torch.arange(first, first + rows_of_ranks[rank])
        self.positions = positions.to("cpu", torch.int64)

    def check(self, k: int) -> None:
        """Check k, the rows and the positions on all ranks together.

        Otherwise a failing rank would block the others.

        Raises:
            ValueError: one of them is invalid on any rank.
        """
        if not 1 <= k <= self.count:
            raise ValueError(f"k must be from 1 to the number of points, {self.count}; given {k}")
        not_finite = (~torch.linalg.vector_norm(self.x, dim=1).isfinite()).sum()
        if int(self.total(not_finite)):
            raise ValueError(f"bank holds NaN or infinite numbers in {int(not_finite)} rows")
        fits = self.positions.shape == (self.x.shape[0],)
        occurrences = torch.zeros(self.count, dtype=torch.int64)
        if fits and bool(((self.positions >= 0) & (self.positions < self.count)).all()):
            occurrences.index_add_(0, self.positions, torch.ones_like(self.positions))
        if bool((self.total(occurrences.to(self.x.device)) != 1).any()):
            raise ValueError(
                f"positions must name each of the {self.count} rows of all ranks once; they do not"
            )

    def start(self, k: int, seed: int) -> Tensor:
        """Compute centers by greedy k-means++ on a sample of the rows, on rank 0, and broadcast them.

        Very many centers are a random sample of the rows instead.
        """
        generator = torch.Generator().manual_seed(seed)
        by_distance = k <= _MOST_BY_DISTANCE
        size = min(self.count, _START_POINTS * k) if by_distance else k
        slots = torch.full((self.count,), -1)
        slots[torch.randperm(self.count, generator=generator)[:size]] = torch.arange(size)
        slots = slots[self.positions].to(self.x.device)  # positions in the sample, or -1
        sample = self.x.new_zeros(size, self.x.shape[1])
        sample[slots[slots >= 0]] = self.x[slots >= 0]
        self.total(sample)  # exact, since each row comes from one rank and the others add zeros
        if not by_distance:
            return sample
        if self.rank == 0:
            centers = _plus_plus(sample, k, generator)
        else:
            centers = self.x.new_empty(k, self.x.shape[1])
        if self.group is not None:
            dist.broadcast(centers, dist.get_global_rank(self.group, 0), group=self.group)
        return centers

    def nearest(self, centers: Tensor) -> tuple[Tensor, Tensor]:
        """Return the index of and squared distance to the nearest center of every row, both (n,)."""
        assignments = torch.empty(self.x.shape[0], dtype=torch.int64, device=self.x.device)
        distances = self.x.new_empty(self.x.shape[0])
        half_squared_norms = centers.square().sum(dim=1) / 2
        for rows in tensors.tiles(self.x.shape[0], centers.shape[0], _SCORE_ENTRIES):
            x = self.x[rows]
            # ||x - c||^2 / 2 without its constant ||x||^2 / 2
            scores = half_squared_norms - x @ centers.t()
            assignments[rows] = nearest = scores.argmin(dim=1)  # of equal scores the first
            score = scores.gather(1, nearest.unsqueeze(1)).squeeze(1)
            distances[rows] = (2 * score + x.square().sum(dim=1)).clamp_(min=0)
        return assignments, distances

    def means(self, assignments: Tensor, k: int) -> tuple[Tensor, int]:
        """Return the mean of each cluster, and the number of empty clusters that got a new center."""
        width = self.x.shape[1]
        sums = torch.zeros(k, width + 1, dtype=torch.float64, device=self.x.device)
        sums[:, width] = torch.bincount(assignments, minlength=k)
        for rows in tensors.tiles(self.x.shape[0], width, _SUM_ENTRIES):
            values, to = self.x[rows].double(), assignments[rows]
            # Each variant adds in a fixed order on its kind of device.
            if values.is_cuda:
                sums[:, :width].index_put_((to,), values, accumulate=True)
            else:
                sums[:, :width].index_add_(0, to, values)
        sums = self.total(sums)
        sizes = sums[:, width:]
        centers = (sums[:, :width] / sizes.clamp(min=1)).to(self.x.dtype)
        if self.spherical:
            centers = F.normalize(centers, dim=1)
        is_empty = sizes[:, 0] == 0
        if (empty := int(is_empty.sum())) > 0:
            # Far from the current centers, because a point alone in its cluster has distance 0.
            _, distances = self.nearest(centers[~is_empty])
            centers[is_empty] = self.farthest(distances, empty)
        return centers, empty

    def farthest(self, distances: Tensor, count: int) -> Tensor:
        """Return the (count, d) rows of all ranks that are farthest from their centers.

        In a tie, the row with the smaller position comes first, on any number of ranks.
        """
        by_position = self.positions.argsort().to(self.x.device)
        order = distances[by_position].sort(descending=True, stable=True).indices
        farthest = by_position[order[:count]]
        first = self.rank * count
        slots = slice(first, first + len(farthest))
        rows = self.x.new_zeros(self.ranks * count, self.x.shape[1])
        rows[slots] = self.x[farthest]
        # 1 + distance, so that empty slots are last; then the position.
        keys = torch.zeros(self.ranks * count, 2, dtype=torch.float64, device=self.x.device)
        keys[slots, 0] = 1 + distances[farthest].double()
        keys[slots, 1] = self.positions.to(self.x.device)[farthest].double()
        self.total(rows)
        self.total(keys)
        order = keys[:, 1].sort(stable=True).indices
        order = order[keys[order, 0].sort(descending=True, stable=True).indices]
        return rows[order[:count]]


def _plus_plus(x: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """Draw k centers among the points by greedy k-means++.

    A point is drawn with a probability proportional to its squared distance to the centers so far. As
    in scikit-learn, the best of 2 + ln k draws is taken.
    """
    draws = 2 + int(math.log(k))
    indices = torch.randint(x.shape[0], (1,), generator=generator).to(x.device)
    squared_norms = x.square().sum(dim=1)
    nearest = _squared_distances(x, squared_norms, indices)[0]
    for _ in range(1, k):
        # On the CPU, because a cumulative sum on a GPU is not deterministic.
        cumulative = nearest.double().cpu().cumsum(0)
        draw = torch.rand(draws, generator=generator, dtype=torch.float64)
        candidates = torch.searchsorted(cumulative, draw * cumulative[-1], right=True)
        candidates = candidates.clamp_(max=x.shape[0] - 1).to(x.device)
        lowered = _squared_distances(x, squared_norms, candidates).minimum(nearest)
        best = lowered.sum(dim=1).argmin()
        nearest = lowered[best]
        indices = torch.cat([indices, candidates[best].unsqueeze(0)])
    return x[indices]


def _squared_distances(x: Tensor, squared_norms: Tensor, points: Tensor) -> Tensor:
    """Return (P, N) squared distances of rows `points`, (P,) indices, to all rows of x."""
    inner = x[points] @ x.t()
    return (squared_norms[points, None] + squared_norms - 2 * inner).clamp_(min=0)
