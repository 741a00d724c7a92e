"""What plots show of each evaluation of a run: neighbors, a map, and histograms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from dasl_core.vocabulary import Subject

# Evaluations that are kept: their maps of 4,096 images take 32 KiB each in a training state.
MOST_EVALUATIONS = 24
BINS = 64


@dataclass(frozen=True)
class Histogram:
    """Counts in equal bins from `low` to `high`, and the mean of what was counted."""

    low: float
    high: float
    counts: list[int]
    mean: float

    @classmethod
    def of(cls, values: np.ndarray) -> Self:
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
        """The middle of each bin."""
        edges = np.linspace(self.low, self.high, len(self.counts) + 1)
        centers: np.ndarray = (edges[1:] + edges[:-1]) / 2
        return centers


@dataclass(frozen=True)
class Shown:
    """What plots show of one evaluation.

    Attributes:
        neighbors: (Q, K) positions of the nearest images of each query, nearest first: held-out images are
            numbered first, then those to train on.
        similarities: (Q, K) their cosines.
        map: (M, 2) float32, coordinates of the images of the map.
        explained: share of the variance on each axis.
        distances: of the embeddings that the loss compares, of images of different classes; without labels, of
            different images. None if there are not two.
        norms: of these embeddings before they are normalized.
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


@dataclass
class History:
    """The evaluations of a run that its plots show, oldest first. The first and the newest are always kept."""

    evaluations: list[Shown] = field(default_factory=list)

    def add(self, shown: Shown) -> None:
        """Add the newest evaluation; it replaces one of the same step. Of too many, every second goes."""
        kept = [each for each in self.evaluations if each.step != shown.step]
        if len(kept) >= MOST_EVALUATIONS:
            kept = kept[::2]
        self.evaluations = [*kept, shown]

    @property
    def newest(self) -> Shown | None:
        return self.evaluations[-1] if self.evaluations else None

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the state, JSON-ready but for arrays."""
        return [vars(each) | _histograms(each) for each in self.evaluations]

    def load_state_dict(self, state: Sequence[dict[str, Any]]) -> None:
        """Restore a `state_dict`; arrays may have become lists."""
        self.evaluations = [_restored(each) for each in state]


def _histograms(shown: Shown) -> dict[str, Any]:
    distances = None if shown.distances is None else vars(shown.distances)
    return {"distances": distances, "norms": vars(shown.norms)}


def _restored(state: dict[str, Any]) -> Shown:
    distances = state["distances"]
    return Shown(
        **state
        | {
            "neighbors": np.asarray(state["neighbors"], np.int64),
            "similarities": np.asarray(state["similarities"], np.float32),
            "map": np.asarray(state["map"], np.float32),
            "explained": tuple(state["explained"]),
            "distances": None if distances is None else Histogram(**distances),
            "norms": Histogram(**state["norms"]),
        }
    )
