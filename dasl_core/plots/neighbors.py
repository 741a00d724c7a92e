"""Nearest neighbors of held-out images, as a picture and as data."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle
from PIL import Image

from dasl_core.plots import style
from dasl_core.plots.data import query_positions
from dasl_core.plots.facts import RunFacts, count
from dasl_core.plots.history import History, Shown
from dasl_core.plots.images import ShownImages

_SIDE, _GAP, _CAPTION, _GROUP, _TOP = 112, 14, 42, 44, 134


def searched_text(run: RunFacts) -> str:
    """Describe the images searched for neighbors."""
    others = count(max(run.held_out - 1, 0), "other held-out image")
    if run.searched < run.train_images:
        return f"{run.searched:,} of {count(run.train_images, 'training image')} and {others}"
    return f"{count(run.train_images, 'training image')} and {others}"


def when(shown: Shown, last: bool) -> str:
    """Describe the time of an evaluation."""
    if shown.step == 0:
        return "At the start"
    return f"{'After training' if last else 'Then'}, epoch {shown.epoch:g}"


def neighbors(history: History, images: ShownImages, run: RunFacts) -> Figure:
    """Draw the neighbors after training and at the start."""
    columns = history.ends[::-1]
    queries = query_positions(len(images.held_out)).tolist()
    per_group = columns[0].neighbors.shape[1]
    positions = [*queries, *(int(p) for column in columns for p in column.neighbors.flatten())]
    pictures = dict(zip(positions, images.pictures(positions, _SIDE), strict=True))
    labels = {position: images.label(position) for position in pictures}
    marked = images.held_out.index.labels is not None

    step, row_height = _SIDE + _GAP, _SIDE + _CAPTION
    group_width = per_group * step
    width = 2 * _GAP + step + sum(_GROUP + group_width for _ in columns)
    height = _TOP + len(queries) * row_height + _GAP
    sheet = Image.new("RGB", (width, height), "white")
    texts: list[tuple[float, float, str, str, float]] = []
    ticks: list[tuple[int, int]] = []

    def place(position: int, left: int, top: int) -> None:
        picture = pictures[position]
        at = (left + (_SIDE - picture.width) // 2, top + (_SIDE - picture.height) // 2)
        sheet.paste(picture, at)

    for row, query in enumerate(queries):
        top = _TOP + row * row_height
        place(query, 2 * _GAP, top)
        texts.append(
            (2 * _GAP, top + _SIDE + 6, _short(labels[query] or images.key(query)), style.INK, 6.5)
        )
        for group, evaluation in enumerate(columns):
            left = 2 * _GAP + step + _GROUP + group * (group_width + _GROUP)
            found = zip(evaluation.neighbors[row].tolist(), evaluation.similarities[row].tolist(), strict=True)  # fmt: skip
            for number, (position, cosine) in enumerate(found):
                x = left + number * step
                place(position, x, top)
                right = labels[query] is not None and labels[position] == labels[query]
                if right:
                    ticks.append((x, top))
                distance = distance_text(cosine)
                texts.append(
                    (x, top + _SIDE + 6, distance, style.GREEN if right else style.INK, 6.5)
                )
                texts.append((x, top + _SIDE + 19, _short(images.key(position)), style.MUTED, 5))
    figure = style.new_figure(width / 144, height / 144)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.axis("off")
    axes.imshow(np.asarray(sheet), interpolation="none", aspect="auto")
    axes.set(xlim=(0, width), ylim=(height, 0))
    for x, y, text, color, size in texts:
        axes.text(x, y, text, color=color, fontsize=size, va="top", parse_math=False)
    for x, y in ticks:
        _tick(axes, x, y)
    axes.text(2 * _GAP, 14, "Nearest neighbors of held-out images", fontsize=11, weight="bold", color=style.INK, va="top")  # fmt: skip
    axes.text(2 * _GAP, 42, f"{run.spec.name} · {run.subtitle}", fontsize=6.5, color=style.MUTED, va="top", parse_math=False)  # fmt: skip
    about = f"Searched among {searched_text(run)}. Below each: its cosine distance and file."
    if marked:
        about += " ✓ and green: of the query's class."
    axes.text(2 * _GAP, 59, about, fontsize=6.5, color=style.MUTED, va="top")
    axes.text(2 * _GAP, 92, "Query", fontsize=7.5, weight="bold", color=style.INK, va="top")
    for group, evaluation in enumerate(columns):
        left = 2 * _GAP + step + _GROUP + group * (group_width + _GROUP)
        axes.text(left, 92, when(evaluation, group == 0), fontsize=7.5, weight="bold", color=style.INK, va="top")  # fmt: skip
        for number in range(per_group):
            text = "nearest" if number == 0 else ordinal(number + 1)
            axes.text(left + number * step, 112, text, fontsize=6.5, color=style.MUTED, va="top")
        if group:
            axes.axvline(left - _GROUP / 2, 0.01, 1 - 90 / height, color=style.GRID, linewidth=0.8)
    return figure


def _tick(axes: Axes, x: int, y: int) -> None:
    """Mark a correct image with a green frame and a tick."""
    axes.add_patch(Rectangle((x - 2, y - 2), _SIDE + 4, _SIDE + 4, fill=False, edgecolor=style.GREEN, linewidth=1.6))  # fmt: skip
    center = (x + _SIDE - 4, y + 6)
    axes.add_patch(Circle(center, 11, color=style.GREEN, zorder=3))
    axes.plot(
        [center[0] - 5, center[0] - 1.5, center[0] + 5], [center[1], center[1] + 4, center[1] - 4],
        color="white", linewidth=1.4, zorder=4, solid_capstyle="round",
    )  # fmt: skip


def distance_text(cosine: float) -> str:
    """Format a cosine distance with two decimals, or more if it is small, as in an untrained network."""
    distance = max(0.0, 1 - cosine)
    return f"{distance:.2f}" if distance >= 0.01 or distance < 5e-5 else f"{distance:.4f}"


def ordinal(number: int) -> str:
    """Return `2nd` for 2; up to 20."""
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number, 'th') }"


def _short(text: str, limit: int = 20) -> str:
    """Return the last part of a path, shortened in the middle."""
    text = text.rsplit("/", 1)[-1]
    half = (limit - 1) // 2
    return text if len(text) <= limit else f"{text[:half]}…{text[-half:]}"
