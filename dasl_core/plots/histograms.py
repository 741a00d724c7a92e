"""Plots of the distributions of distances and norms over the training."""

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from dasl_core.plots import style
from dasl_core.plots.facts import RunFacts, count
from dasl_core.plots.history import Histogram, History

_RIDGES = 12
_GRID = 256  # points of a ridge
_HEIGHT = 1.9  # height of a ridge, in rows


def distances(history: History, run: RunFacts) -> Figure:
    """Draw the distances between embeddings over the training."""
    what = "images of different classes" if run.classes is not None else "different images"
    note = f"Between {what}, after normalization, from 0 to 2: what DAR makes equal"
    return _ridges(history, "distances", run, "Distances of embeddings", note, "Distance")


def norms(history: History, run: RunFacts) -> Figure:
    """Draw the norms of embeddings over the training."""
    note = "Of held-out images, before normalization: what SEC makes equal"
    return _ridges(history, "norms", run, "Norms of embeddings", note, "Norm")


def norms_by_group(history: History, run: RunFacts) -> Figure:
    """Draw mean and spread of the norms by group or class at the newest evaluation."""
    newest = history.evaluations[-1]
    shown = newest.by_group
    assert shown is not None, "there are groups to compare"
    rows, by = shown.rows, style.shortened(shown.by, 30)
    tall = 0.24 * len(rows) + 0.2
    figure = style.new_figure(7.6, tall + 1.9)
    note = "Of held-out images, before normalization; ± one standard deviation. Line: mean of all"
    style.heading(figure, f"Norms of embeddings by {by}", f"{run.spec.name} · {run.subtitle}", note)
    axes = style.add_axes(figure, 2.1, 1.3, 4.1, tall)
    share, beyond = 100 * shown.eta_squared, 100 * max(0.0, shown.omega_squared)
    title = f"The {by} explains {share:.0f} % of the variance, {beyond:.0f} % beyond chance"
    chosen = f"; {len(rows)} of {shown.groups:,}: smallest and largest means"
    style.plain(axes, title, f"Epoch {newest.epoch:g}{chosen if shown.groups > len(rows) else ''}")
    places = range(len(rows))
    axes.set_ylim(-0.6, len(rows) - 0.4)
    means, stds = [row[2] for row in rows], [row[3] for row in rows]
    axes.axvline(newest.norms.mean, color=style.MUTED, linestyle=(0, (1, 2)), linewidth=1.2)
    axes.errorbar(means, places, xerr=stds, fmt="o", color=style.BLUE, markersize=4, elinewidth=1.4)
    axes.set_xlabel("Norm", fontsize=8, color=style.MUTED)
    axes.set_yticks(places, [style.shortened(row[0], 26) for row in rows])
    for text in axes.get_yticklabels():
        text.set_parse_math(False)
    style.label_lines(figure, axes, [(at, f"{row[2]:.3g}, {count(row[1], 'image')}", style.MUTED) for at, row in zip(places, rows, strict=True)])  # fmt: skip
    return figure


def _ridges(
    history: History, kind: str, run: RunFacts, title: str, note: str, label: str
) -> Figure:
    """Draw a ridge for each evaluation, the start at the top, and a line through their means."""
    measured = [entry for entry in history.evaluations if getattr(entry, kind) is not None]
    evaluations = [measured[i] for i in np.unique(np.linspace(0, len(measured) - 1, _RIDGES).astype(int))] if measured else []  # fmt: skip
    tall = 0.42 * max(len(evaluations), 3) + 0.6
    figure = style.new_figure(7.6, tall + 1.6)
    style.heading(figure, title, f"{run.spec.name} · {run.subtitle}", note)
    axes = style.add_axes(figure, 0.85, 1.0, 5.9, tall)
    style.plain(axes, "")
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(label, fontsize=8, color=style.MUTED)
    if not evaluations:
        axes.text(0.5, 0.5, "Not measured: a single image is held out", ha="center", color=style.MUTED, transform=axes.transAxes)  # fmt: skip
        axes.set(xticks=[], yticks=[])
        return figure
    counted: list[Histogram] = [getattr(evaluation, kind) for evaluation in evaluations]
    low, high = min(counts.low for counts in counted), max(counts.high for counts in counted)
    x = np.linspace(low, high, _GRID)
    for number, histogram in enumerate(counted):
        base = len(evaluations) - 1 - number
        y = _density(histogram, x)
        share = number / max(len(evaluations) - 1, 1)
        color = (1 - share) * np.array(to_rgb(style.MUTED)) + share * np.array(to_rgb(style.BLUE))
        axes.fill_between(x, base, base + y * _HEIGHT, color=color, alpha=0.45, linewidth=0, zorder=2 * number + 2)  # fmt: skip
        axes.plot(x, base + y * _HEIGHT, color=color, linewidth=1.2, zorder=2 * number + 3)
    means = [histogram.mean for histogram in counted]
    levels = [len(evaluations) - 1 - number for number in range(len(evaluations))]
    axes.plot(means, levels, color=style.ORANGE, linewidth=1.2, marker="|", markersize=9, markeredgewidth=2, zorder=100)  # fmt: skip
    axes.set_yticks(levels, ["Start" if e.step == 0 else f"Epoch {e.epoch:g}" for e in evaluations])
    style.label_lines(figure, axes, [(y, f"{mean:.3g}", style.ORANGE) for y, mean in zip(levels, means, strict=True)])  # fmt: skip
    style.annotate(axes, "mean", (1, 1), (5, -2), fontsize=7.5, color=style.ORANGE)
    axes.set_ylim(-0.15, len(evaluations) - 1 + _HEIGHT + 0.1)
    axes.grid(axis="y", visible=False)
    axes.set_xlim(low, high)
    return figure


def _density(histogram: Histogram, grid: np.ndarray) -> np.ndarray:
    """Return a ridge on a grid: counts smoothed by Scott's rule and scaled to [0, 1]."""
    counts, centers = np.asarray(histogram.counts, float), histogram.centers
    total = max(float(counts.sum()), 1.0)
    deviation = float(np.sqrt((counts * (centers - histogram.mean) ** 2).sum() / total))
    width = (histogram.high - histogram.low) / len(counts)
    bandwidth = max(deviation * total**-0.2 * 0.7, width / 2, float(grid[1] - grid[0]) / 2)
    density = (counts * np.exp(-0.5 * ((grid[:, None] - centers) / bandwidth) ** 2)).sum(axis=1)
    ridge: np.ndarray = density / max(float(density.max()), 1e-300)
    return ridge
