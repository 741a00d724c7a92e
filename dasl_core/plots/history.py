"""Plot data of each evaluation of a run: neighbors, a map, and histograms."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch

from dasl_core.vocabulary import Subject

# Number of stored evaluations; a map of 4,096 images takes 32 KiB in a training state.
MOST_EVALUATIONS = 24
BINS = 64
# Number of groups shown with the smallest mean, and with the largest.
EXTREMES = 6
_ARRAYS = ("neighbors", "similarities", "map")


@dataclass(frozen=True)
class Histogram:
    """Counts in equal bins from `low` to `high`, and the mean of the values."""

    low: float
    high: float
    counts: list[int]
    mean: float

    @classmethod
    def from_values(cls, values: np.ndarray) -> Self:
        """Count finite values between their minimum and maximum."""
        values = values[np.isfinite(values)].astype(np.float64)
        if not len(values):
            return cls(0.0, 1.0, [0] * BINS, 0.0)
        low, high = float(values.min()), float(values.max())
        if high - low < 1e-9 * max(1.0, abs(high)):
            low, high = low - 0.5, high + 0.5
        counts, _ = np.histogram(values, BINS, (low, high))
        return cls(low, high, counts.tolist(), float(values.mean()))

    @property
    def centers(self) -> np.ndarray:
        """Center of each bin."""
        edges = np.linspace(self.low, self.high, len(self.counts) + 1)
        centers: np.ndarray = (edges[1:] + edges[:-1]) / 2
        return centers


@dataclass(frozen=True)
class GroupNorms:
    """Norms of embeddings by group or class: analysis of variance with one factor.

    Attributes:
        by: column of the groups, or "class".
        groups: number of groups.
        eta_squared: share of the variance between groups. Of many small groups it is large by chance.
        omega_squared: the same less what chance is expected to add (Hays, Statistics, 1963); around 0, also below, if
            groups do not differ.
        rows: name, number of images, mean and standard deviation of the groups with the smallest and the largest means,
            by mean.
    """

    by: str
    groups: int
    eta_squared: float
    omega_squared: float
    rows: list[tuple[str, int, float, float]]

    @classmethod
    def from_values(cls, by: str, norms: np.ndarray, names: Sequence[str]) -> Self | None:
        """Compare groups, leaving out the name ""; None with fewer than two, or with an image each."""
        has_group = np.array([name != "" for name in names], dtype=bool)
        norms = norms[has_group].astype(np.float64)
        found, group = np.unique([name for name in names if name], return_inverse=True)
        if not 2 <= len(found) < len(norms):
            return None
        counts = np.bincount(group)
        means = np.bincount(group, norms) / counts
        squares = np.bincount(group, np.square(norms - means[group]))
        between, within = float(counts @ np.square(means - norms.mean())), float(squares.sum())
        total, noise = between + within, within / (len(norms) - len(found))
        order = np.argsort(means, kind="stable")
        if len(order) > 2 * EXTREMES:
            order = np.concatenate([order[:EXTREMES], order[-EXTREMES:]])
        stds = np.sqrt(squares / counts)
        return cls(
            by,
            len(found),
            between / total if total else 0.0,
            (between - (len(found) - 1) * noise) / (total + noise) if total else 0.0,
            [(str(found[i]), int(counts[i]), float(means[i]), float(stds[i])) for i in order],
        )


@dataclass(frozen=True)
class Shown:
    """Plot data of one evaluation.

    Attributes:
        neighbors: (Q, K) positions of the nearest images of each query, nearest first; held-out images are
            numbered first, then training images.
            similarities: (Q, K) cosine similarities.
            map: (M, 2) float32, coordinates of the images on the map.
        explained: share of the variance on each axis.
        distances: distances of the loss's embeddings between images of different classes; without labels, between
            different images. None without two such images.
            norms: norms of these embeddings before normalization.
            by_group: the norms by group; None where there is nothing to compare.
    """

    step: int
    epoch: float
    subject: Subject
    neighbors: np.ndarray
    similarities: np.ndarray
    map: np.ndarray
    explained: tuple[float, float]
    distances: Histogram | None
    norms: Histogram
    by_group: GroupNorms | None


@dataclass
class History:
    """The evaluations shown in a run's plots, oldest first, including the first and the newest."""

    evaluations: list[Shown] = field(default_factory=list)

    def add(self, shown: Shown) -> None:
        """Add the newest evaluation, replacing one of the same step; drop every second one if there are too many."""
        evaluations = [
            evaluation for evaluation in self.evaluations if evaluation.step != shown.step
        ]
        if len(evaluations) >= MOST_EVALUATIONS:
            evaluations = evaluations[::2]
        self.evaluations = [*evaluations, shown]

    @property
    def ends(self) -> list[Shown]:
        """The first and the newest evaluation; one if there are no others."""
        return self.evaluations[:: max(1, len(self.evaluations) - 1)]

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the state, JSON-ready except for tensors."""
        return [
            vars(shown)
            | {name: torch.from_numpy(getattr(shown, name)) for name in _ARRAYS}
            | {
                "distances": None if shown.distances is None else vars(shown.distances),
                "norms": vars(shown.norms),
                "by_group": None if shown.by_group is None else vars(shown.by_group),
            }
            for shown in self.evaluations
        ]

    def load_state_dict(self, state: Sequence[dict[str, Any]]) -> None:
        """Restore a `state_dict`."""
        self.evaluations = [
            Shown(
                **shown
                | {name: shown[name].numpy() for name in _ARRAYS}
                | {
                    "explained": tuple(shown["explained"]),
                    "distances": shown["distances"] and Histogram(**shown["distances"]),
                    "norms": Histogram(**shown["norms"]),
                    "by_group": shown["by_group"] and GroupNorms(**shown["by_group"]),
                }
            )
            for shown in state
        ]
