"""Data of the plots: neighbors, maps and histograms at every stored evaluation, and thumbnails.

The axes of successive maps, of two principal components, are aligned.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dasl_core.plots.facts import RunFacts
from dasl_core.plots.history import History, Shown
from dasl_core.plots.images import ShownImages, sheet_columns

QUERIES, NEIGHBORS = 8, 7
# Number of images on a map. Held-out images are reduced only if the training images do not all fit.
ON_MAP = 4_096
THUMBNAILS, THUMBNAILS_INDEX = "thumbnails.webp", "thumbnails.json"
NEIGHBORS_SHEET, SHEET_COLUMNS = "neighbours.webp", 32


def query_positions(held_out: int) -> np.ndarray:
    """Return the evenly spaced positions of the held-out images whose neighbors are shown."""
    spaced: np.ndarray = np.linspace(0, held_out - 1, min(QUERIES, held_out)).astype(np.int64)
    return spaced


def neighbors_data(
    history: History, images: ShownImages, run: RunFacts
) -> tuple[dict[str, Any], bytes]:
    """Return the neighbors at every stored evaluation, JSON-ready, and the sheet of their thumbnails."""
    queries = query_positions(len(images.held_out)).tolist()
    positions = dict.fromkeys(queries)
    for evaluation in history.evaluations:
        positions |= dict.fromkeys(evaluation.neighbors.flatten().tolist())
    numbers = {position: number for number, position in enumerate(positions)}
    content = {
        "version": 1,
        "searched": {
            "held_out": len(images.held_out),
            "train": run.searched,
            "of_train": len(images.train),
        },
        "thumbnails": {"file": NEIGHBORS_SHEET, "side": 64, "columns": SHEET_COLUMNS},
        "images": [
            {
                "key": images.key(position),
                "label": images.label(position),
                "held_out": images.is_held_out(position),
            }
            for position in positions
        ],
        "queries": [numbers[query] for query in queries],
        "evaluations": [
            {
                **_about(evaluation),
                "neighbors": [[numbers[position] for position in row] for row in evaluation.neighbors.tolist()],
                "distances": [
                    [round(max(0.0, 1 - cosine), 6) for cosine in row]
                    for row in evaluation.similarities.tolist()
                ],
            }
            for evaluation in history.evaluations
        ],
    }  # fmt: skip
    return content, images.sheet(list(positions), SHEET_COLUMNS)


def thumbnails(images: ShownImages, positions: Sequence[int]) -> tuple[dict[str, Any], bytes]:
    """Return the contents of a map's thumbnails, JSON-ready, and their sheet."""
    columns = sheet_columns(len(positions))
    labels = [images.label(position) for position in positions]
    names = sorted({label for label in labels if label is not None})
    numbers = {name: number for number, name in enumerate(names)}
    content = {
        "version": 1,
        "file": THUMBNAILS,
        "side": 64,
        "columns": columns,
        "held_out": sum(images.is_held_out(position) for position in positions),
        "keys": [images.key(position) for position in positions],
        "classes": names or None,
        # Of two data sets, one may have labels.
        "labels": [None if label is None else numbers[label] for label in labels]
        if names
        else None,
    }
    return content, images.sheet(positions, columns)


def map_data(history: History) -> dict[str, Any]:
    """Return the map at every stored evaluation, JSON-ready, in the order of `thumbnails.json`."""
    return {
        "version": 1,
        "projection": "pca",
        "images": THUMBNAILS_INDEX,
        "evaluations": [
            {
                **_about(evaluation),
                "explained": [round(share, 4) for share in evaluation.explained],
                "x": _coordinates(evaluation.map[:, 0]),
                "y": _coordinates(evaluation.map[:, 1]),
            }
            for evaluation in history.evaluations
        ],
    }


def _about(shown: Shown) -> dict[str, Any]:
    return {"step": shown.step, "epoch": shown.epoch, "subject": shown.subject}


def _coordinates(values: np.ndarray) -> list[float]:
    return [float(f"{value:.4g}") for value in values.tolist()]


def histograms_data(history: History, labeled: bool) -> dict[str, Any]:
    """Return the histograms at every stored evaluation, JSON-ready."""

    def rows(kind: str) -> list[dict[str, Any]]:
        return [
            {
                "step": evaluation.step,
                "epoch": evaluation.epoch,
                "low": _five_digits(histogram.low),
                "high": _five_digits(histogram.high),
                "mean": _five_digits(histogram.mean),
                "counts": histogram.counts,
            }
            for evaluation in history.evaluations
            if (histogram := getattr(evaluation, kind)) is not None
        ]

    return {
        "version": 1,
        "distances": {"between": "classes" if labeled else "images", "evaluations": rows("distances")},
        "norms": {"evaluations": rows("norms")},
        "norms_by_group": [
            {"step": evaluation.step, "epoch": evaluation.epoch, **vars(evaluation.by_group)}
            for evaluation in history.evaluations
            if evaluation.by_group is not None
        ],
    }  # fmt: skip


def _five_digits(value: float) -> float:
    return float(f"{value:.5g}")


def principal_components(features: np.ndarray) -> tuple[np.ndarray, tuple[float, float]]:
    """Project features (N, d) to their two principal components, (N, 2) float32.

    Also returns the share of the variance on each. Rows are first scaled to length 1, as in the cosine search of
    neighbors. The largest coordinate of each axis is positive.
    """
    x = features.astype(np.float64)
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    x -= x.mean(axis=0)
    count, width = x.shape
    # The eigenvectors of the smaller Gram matrix are the components, or the coordinates.
    gram = x.T @ x if width <= count else x @ x.T
    values, vectors = np.linalg.eigh(gram)
    values, vectors = np.maximum(values[::-1][:2], 0), vectors[:, ::-1][:, :2]
    coordinates = x @ vectors if width <= count else vectors * np.sqrt(values)
    missing = 2 - coordinates.shape[1]
    coordinates = np.pad(coordinates, ((0, 0), (0, missing)))
    largest = coordinates[np.abs(coordinates).argmax(axis=0), [0, 1]]
    coordinates *= np.where(largest < 0, -1, 1)
    total = max(float(np.trace(gram)), 1e-30)
    first, second = (float(value) / total for value in np.pad(values, (0, missing)))
    return coordinates.astype(np.float32), (min(first, 1.0), min(second, 1.0))


def aligned(coordinates: np.ndarray, previous: np.ndarray) -> np.ndarray:
    """Align a map (N, 2) with the previous one by rotation or reflection (orthogonal Procrustes)."""
    product = coordinates.T.astype(np.float64) @ previous.astype(np.float64)
    left, _, right = np.linalg.svd(product)
    turned: np.ndarray = (coordinates @ (left @ right)).astype(np.float32)
    return turned
