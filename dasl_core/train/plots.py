"""Plots of a run: its curves, and the nearest neighbors of held-out images."""

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from dasl_core.data.image_set import ImageSet
from dasl_core.headlines import ACCURACIES, PLOTTED
from dasl_core.vocabulary import BEFORE_TRAINING

logger = logging.getLogger(__name__)

QUERIES, NEIGHBORS = 8, 7
LARGEST_LOSS = 1e100
TRAINED, EMBEDDING, BASELINE, MISS = "#1f6feb", "#8250df", "#8b949e", "#cf222e"
CURVES = (
    ("backbone", (*BEFORE_TRAINING, "backbone"), TRAINED),
    ("embedding", ("embedding",), EMBEDDING),
)
TITLES = {accuracy.metric: f"{accuracy.title}, held-out" for accuracy in ACCURACIES}


def draw_curves(
    epoch_losses: list[float], evaluations: list[dict[str, Any]], title: str, path: Path
) -> None:
    """Write a PNG of the loss of each epoch and of the held-out metrics with their baselines.

    A failure to draw must not fail a finished run: it is logged and noted in the PNG, never raised.

    Args:
        evaluations: dicts with step, epoch, subject and metrics, as in the run's progress.
    """
    with _never_failing(path):
        _draw_curves(epoch_losses, evaluations, title, path)


def _draw_curves(
    epoch_losses: list[float], evaluations: list[dict[str, Any]], title: str, path: Path
) -> None:
    names = [n for n in PLOTTED if any(n in e["metrics"] for e in evaluations)][:2]
    figure = Figure(figsize=(5 * (1 + len(names)), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 1 + len(names), squeeze=False)[0]
    # Larger losses break the scale; they leave a gap, as NaN does.
    losses = [loss if abs(loss) < LARGEST_LOSS else math.nan for loss in epoch_losses]
    axes[0].plot(range(1, len(losses) + 1), losses, color=TRAINED)
    axes[0].set(xlabel="epoch", ylabel="loss (mean of the epoch)", title="Training loss")
    for axis, name in zip(axes[1:], names, strict=True):
        for label, subjects, color in CURVES:
            points = [
                (e["epoch"], e["metrics"][name])
                for e in evaluations
                if e["subject"] in subjects and name in e["metrics"]
            ]
            if points:
                axis.plot(*zip(*points, strict=True), marker="o", color=color, label=label)
        for e in evaluations:
            if e["subject"] in ("raw", *BEFORE_TRAINING) and name in e["metrics"]:
                style = ":" if e["subject"] == "raw" else "--"
                label = "raw pixels" if e["subject"] == "raw" else e["subject"]
                axis.axhline(e["metrics"][name], linestyle=style, color=BASELINE, label=label)
        axis.set(xlabel="epoch", title=TITLES.get(name, name.replace("_", " ")))
        axis.legend(frameon=False)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    figure.suptitle(title, parse_math=False)  # a job may be called "$5 run", which is not a formula
    figure.savefig(path, dpi=120)


def draw_neighbors(features: Tensor, images: ImageSet, path: Path) -> None:
    """Write a PNG with a row for each of a few held-out images: itself, then its nearest neighbors.

    Neighbors of another class have a red frame. Never raises, like `draw_curves`.

    Args:
        features: (N, d) of the N images, N >= 2.
    """
    with _never_failing(path):
        _draw_neighbors(features, images, path)


def _draw_neighbors(features: Tensor, images: ImageSet, path: Path) -> None:
    count = len(features)
    queries = torch.linspace(0, count - 1, min(QUERIES, count)).long()
    z = F.normalize(features, dim=1)
    similarity = z[queries] @ z.T
    similarity[torch.arange(len(queries)), queries] = -torch.inf
    nearest = similarity.topk(min(NEIGHBORS, count - 1), dim=1).indices
    names = images.class_names()
    figure = Figure(
        figsize=(1 + nearest.shape[1], len(queries)), layout="constrained", facecolor="white"
    )
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(queries), 1 + nearest.shape[1], squeeze=False)
    for row, query in enumerate(queries.tolist()):
        for column, sample in enumerate([query, *nearest[row].tolist()]):
            axis = axes[row][column]
            canvases, valid_hw = images.canvases.read([int(images.indices[sample])])
            height, width = valid_hw[0].tolist()
            pixels = canvases[0, :, :height, :width].permute(1, 2, 0).numpy()
            axis.imshow(_shown(pixels), cmap="gray")
            axis.set(xticks=[], yticks=[])
            miss = names is not None and names[sample] != names[query]
            for spine in axis.spines.values():
                spine.set(visible=column == 0 or miss, color=MISS if miss else "black", lw=1.5)
    axes[0][0].set_title("query", fontsize=8)
    if nearest.shape[1]:
        axes[0][1].set_title("nearest", fontsize=8)
    figure.savefig(path, dpi=120)


def _shown(pixels: np.ndarray) -> np.ndarray:
    """Return pixels (H, W, C) as a plot shows them: color, or the first band, deep ones from their own range."""
    if pixels.shape[2] != 3:
        pixels = pixels[:, :, 0]
    if pixels.dtype == np.uint8:
        return pixels
    values = pixels.astype(np.float32)
    low, high = values.min(), values.max()
    shown: np.ndarray = (values - low) / max(float(high - low), 1e-12)
    return shown


@contextmanager
def _never_failing(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception:  # no error of a plotting library may fail a finished run
        logger.warning("%s could not be drawn", path.name, exc_info=True)
        figure = Figure(figsize=(5, 3.6))
        FigureCanvasAgg(figure)
        figure.text(0.5, 0.5, "This plot could not be drawn; see the log.", ha="center")
        figure.savefig(path, dpi=120)
