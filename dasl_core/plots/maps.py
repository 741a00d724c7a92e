"""Map of features in two dimensions, as a picture and as data."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dasl_core.plots import style
from dasl_core.plots.facts import RunFacts, count
from dasl_core.plots.history import History, Shown
from dasl_core.plots.images import ShownImages
from dasl_core.plots.neighbors import when

_CELLS = 16  # maximum number of thumbnails per side
_PANEL = 4.3  # inches
_OTHER = "#b6bec7"


def feature_map(
    history: History, images: ShownImages, positions: Sequence[int], run: RunFacts
) -> Figure:
    """Draw the map at the start and after training."""
    panels, newest = history.ends, history.evaluations[-1]
    labels = [images.label(position) for position in positions]
    held_out = np.array([images.is_held_out(position) for position in positions])
    names = _names(labels)
    step = _PANEL + 0.35
    figure = style.new_figure(0.3 + step * (len(panels) + 1), _PANEL + (2.05 if names else 1.7))
    trained = int((~held_out).sum())
    about = (
        f"Principal components of {count(int(held_out.sum()), 'held-out image')} (dark) and "
        f"{count(trained, 'training image')} (light). Axes are turned to fit the map before."
    )
    style.heading(figure, "Map of the features", f"{run.spec.name} · {run.subtitle}", about)
    all_axes = [
        style.add_axes(figure, 0.15 + step * number, 1.4, _PANEL, _PANEL)
        for number in range(len(panels) + 1)
    ]
    for axes, evaluation in zip(all_axes, panels, strict=False):
        _bare(axes, evaluation, when(evaluation, evaluation is newest))
        _points(axes, evaluation.map, labels, names, held_out)
    _bare(all_axes[-1], newest, "The images at these places")
    _pictures(all_axes[-1], newest.map, images, positions)
    if names:
        _legend(figure, names, others=len(set(labels)) > len(names))
    return figure


def _names(labels: Sequence[str | None]) -> list[str]:
    """Return the largest classes, which get their own color."""
    sizes = Counter(label for label in labels if label is not None)
    return sorted(sizes, key=lambda name: (-sizes[name], name))[: len(style.PALETTE) - 3]


def _bare(axes: Axes, shown: Shown, title: str) -> None:
    first, second = (f"{100 * share:.0f} %" for share in shown.explained)
    style.plain(axes, title, f"{first} and {second} of the variance")
    axes.set(xticks=[], yticks=[])
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set(visible=True, color=style.GRID)
    low, high = shown.map.min(axis=0), shown.map.max(axis=0)
    half = max(float((high - low).max()) / 2, 1e-6) * 1.08
    middle = (low + high) / 2
    axes.set(xlim=(middle[0] - half, middle[0] + half), ylim=(middle[1] - half, middle[1] + half))
    axes.set_aspect("equal")


def _points(
    axes: Axes,
    places: np.ndarray,
    labels: Sequence[str | None],
    names: list[str],
    held_out: np.ndarray,
) -> None:
    colors = {name: style.PALETTE[number] for number, name in enumerate(names)}
    rest = _OTHER if names else style.BLUE
    color = np.array([colors.get(label or "", rest) for label in labels])
    size = float(np.clip(6_000 / max(len(places), 1), 4, 30))
    for mask, alpha, scale in ((~held_out, 0.35, 0.8), (held_out, 0.95, 1.0)):
        if mask.any():
            x, y = places[mask].T
            axes.scatter(
                x, y, s=size * scale, c=color[mask], alpha=alpha, linewidths=0, rasterized=True
            )


def _pictures(
    axes: Axes, places: np.ndarray, images: ShownImages, positions: Sequence[int]
) -> None:
    """Show in each cell of a grid the image nearest to its center."""
    low, span = places.min(axis=0), float(np.ptp(places, axis=0).max()) or 1.0
    cells = min(_CELLS, max(3, round(1.6 * len(places) ** 0.5)))
    inside = (places - low) / span * (cells - 1e-6)
    cell = inside.astype(int)
    away = np.abs(inside - cell - 0.5).max(axis=1)
    best: dict[tuple[int, int], int] = {}
    for number in np.argsort(away, kind="stable").tolist():
        best.setdefault((int(cell[number, 0]), int(cell[number, 1])), number)
    numbers = list(best.values())
    pictures = images.pictures([positions[number] for number in numbers], 64)
    half = span / cells * 0.46
    for ((column, row), _), picture in zip(best.items(), pictures, strict=True):
        x, y = low + (np.array([column, row]) + 0.5) * span / cells
        wide, tall = (half * side / max(picture.size) for side in picture.size)
        axes.imshow(
            np.asarray(picture), extent=(x - wide, x + wide, y - tall, y + tall), zorder=2,
            interpolation="antialiased",
        )  # fmt: skip
    margin = span * 0.04
    axes.set(
        xlim=(low[0] - margin, low[0] + span + margin),
        ylim=(low[1] - margin, low[1] + span + margin),
    )


def _legend(figure: Figure, names: list[str], *, others: bool) -> None:
    """List the colored classes on one line below the maps."""
    colors = dict(zip(names, style.PALETTE, strict=False)) | (
        {"other classes": _OTHER} if others else {}
    )
    handles = [
        Line2D([], [], marker="o", linestyle="", color=color, markersize=5,
               label=style.shortened(name, 18))
        for name, color in colors.items()
    ]  # fmt: skip
    legend = figure.legend(
        handles=handles, loc="lower left", ncols=len(handles), frameon=False, fontsize=8,
        labelcolor=style.INK, handletextpad=0.1, columnspacing=1.4, borderaxespad=0.3,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set_parse_math(False)
