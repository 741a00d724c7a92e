"""What the plots show, as data: neighbors, maps and histograms at every kept evaluation, and thumbnails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dasl_core.plots.facts import RunFacts
from dasl_core.plots.history import History
from dasl_core.plots.images import ShownImages, columns_of

QUERIES, NEIGHBORS = 8, 7
# Images of a map. Fewer held-out images are on it only where there are more to train on than fit beside them.
ON_MAP = 4_096
THUMBNAILS, THUMBNAILS_INDEX = "thumbnails.webp", "thumbnails.json"
NEIGHBORS_SHEET, SHEET_COLUMNS = "neighbours.webp", 32


def queries_of(held_out: int) -> np.ndarray:
    """Return the positions of the held-out images whose neighbors are shown, evenly spaced."""
    spaced: np.ndarray = np.linspace(0, held_out - 1, min(QUERIES, held_out)).astype(np.int64)
    return spaced


def neighbors_data(
    history: History, images: ShownImages, run: RunFacts
) -> tuple[dict[str, Any], bytes]:
    """Return the neighbors at every kept evaluation, JSON-ready, and the sheet of their thumbnails."""
    queries = queries_of(len(images.held_out)).tolist()
    shown = dict.fromkeys(queries)
    for evaluation in history.evaluations:
        shown |= dict.fromkeys(evaluation.neighbors.flatten().tolist())
    numbers = {position: number for number, position in enumerate(shown)}
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
            for position in shown
        ],
        "queries": [numbers[query] for query in queries],
        "evaluations": [
            {
                "step": each.step,
                "epoch": each.epoch,
                "subject": each.subject,
                "neighbors": [[numbers[position] for position in row] for row in each.neighbors.tolist()],
                "distances": [
                    [round(max(0.0, 1 - cosine), 6) for cosine in row]
                    for row in each.similarities.tolist()
                ],
            }
            for each in history.evaluations
        ],
    }  # fmt: skip
    return content, images.sheet(list(shown), SHEET_COLUMNS)


def thumbnails(images: ShownImages, positions: Sequence[int]) -> tuple[dict[str, Any], bytes]:
    """Return what the thumbnails of a map show, JSON-ready, and their sheet."""
    columns = columns_of(len(positions))
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
    """Return the map at every kept evaluation, JSON-ready: images in the order of `thumbnails.json`."""
    return {
        "version": 1,
        "projection": "pca",
        "images": THUMBNAILS_INDEX,
        "evaluations": [
            {
                "step": each.step,
                "epoch": each.epoch,
                "subject": each.subject,
                "explained": [round(share, 4) for share in each.explained],
                "x": _coordinates(each.map[:, 0]),
                "y": _coordinates(each.map[:, 1]),
            }
            for each in history.evaluations
        ],
    }


def _coordinates(values: np.ndarray) -> list[float]:
    return [float(f"{value:.4g}") for value in values.tolist()]


def histograms_data(history: History, labeled: bool) -> dict[str, Any]:
    """Return the histograms at every kept evaluation, JSON-ready."""

    def rows(kind: str) -> list[dict[str, Any]]:
        return [
            {
                "step": each.step,
                "epoch": each.epoch,
                "low": _five_digits(histogram.low),
                "high": _five_digits(histogram.high),
                "mean": _five_digits(histogram.mean),
                "counts": histogram.counts,
            }
            for each in history.evaluations
            if (histogram := getattr(each, kind)) is not None
        ]

    return {
        "version": 1,
        "distances": {"between": "classes" if labeled else "images", "evaluations": rows("distances")},
        "norms": {"evaluations": rows("norms")},
    }  # fmt: skip


def _five_digits(value: float) -> float:
    return float(f"{value:.5g}")
