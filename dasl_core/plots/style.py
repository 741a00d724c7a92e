"""Style of all plots: colors, type and axes, and saving of figures."""

import io
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

logger = logging.getLogger(__name__)

# Readable on white and on black. In the report, ink, muted and grid follow the page.
INK, MUTED, GRID = "#1f2328", "#66707b", "#d8dee4"
BLUE, PURPLE, GREEN, ORANGE, BROWN = "#2f81f7", "#a371f7", "#2da44e", "#d9822b", "#a5744a"
PALETTE = (
    BLUE,
    ORANGE,
    GREEN,
    PURPLE,
    "#e5534b",
    BROWN,
    "#d65db1",
    "#8b949e",
    "#a0a11c",
    "#1b9aaa",
)
DPI = 144
_FONTS = ["DejaVu Sans"]
_INKS = {INK: "currentColor", MUTED: "var(--muted)", GRID: "var(--grid)"}


def new_figure(width: float, height: float) -> Figure:
    """Create a white figure with a size in inches."""
    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def add_axes(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Add axes at a position in inches from the upper left corner, labels not included."""
    whole, tall = figure.get_size_inches()
    axes: Axes = figure.add_axes(
        (left / whole, 1 - (top + height) / tall, width / whole, height / tall)
    )
    return axes


def heading(figure: Figure, title: str, *lines: str) -> None:
    """Write a left-aligned title with lines below it. Names are not parsed as formulas."""
    width, height = figure.get_size_inches()
    texts = [(0.14, title, 13.0, INK, "bold")]
    texts += [
        (0.42 + 0.17 * number, line, 8.5, MUTED, "normal") for number, line in enumerate(lines)
    ]
    for top, text, size, color, weight in texts:
        line = shortened(text, max(20, int(width * 72 / (0.56 * size))))
        figure.text(
            0.15 / width, 1 - top / height, line, fontsize=size, color=color, weight=weight, va="top",
            parse_math=False,
        )  # fmt: skip


def shortened(text: str, limit: int) -> str:
    """Cut a text to at most so many characters."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def plain(axes: Axes, title: str, note: str = "") -> None:
    """Draw axes with a light grid, two spines and a left-aligned title, with a note below it."""
    axes.set_facecolor("none")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GRID)
    axes.tick_params(colors=MUTED, labelsize=8, length=0)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_title(
        title, loc="left", fontsize=10, color=INK, pad=17 if note else 6, parse_math=False
    )
    if note:
        annotate(axes, note, (0, 1), (0, 4), fontsize=7.5, color=MUTED)


def annotate(
    axes: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], **style: Any
) -> None:
    """Write a text at a place given as shares of the axes, moved by an offset in points."""
    axes.annotate(
        text, at, offset, xycoords="axes fraction", textcoords="offset points", parse_math=False, **style
    )  # fmt: skip


def epochs_axis(axes: Axes, last: float) -> None:
    """Label the x axis with whole epochs from 0 to the last."""
    axes.set_xlim(0, max(last, 1))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    axes.set_xlabel("Epoch", fontsize=8, color=MUTED)


def label_lines(figure: Figure, axes: Axes, labels: list[tuple[float, str, str]]) -> None:
    """Label lines (y, text, color) to the right of the axes, at their heights and without overlap."""
    low, high = axes.get_ylim()
    height = figure.get_size_inches()[1] * axes.get_position().height * 72
    needed = min(10.5 / max(height, 1.0), 0.95 / max(len(labels) - 1, 1))
    places = sorted(((y - low) / ((high - low) or 1.0), text, color) for y, text, color in labels)
    at: list[float] = []
    for share, _, _ in places:
        at.append(max(share, at[-1] + needed) if at else max(share, 0.0))
    if at and at[-1] > 1:
        at[-1] = 1.0
        for i in range(len(at) - 2, -1, -1):
            at[i] = min(at[i], at[i + 1] - needed)
    for y, (_, text, color) in zip(at, places, strict=True):
        annotate(axes, text, (1, y), (5, 0), va="center", fontsize=8, color=color)


def to_svg(figure: Figure, name: str) -> str:
    """Convert a figure without its heading to an SVG element with ink as on the page, and ids beginning with `name`."""
    content = io.StringIO()
    settings = {"svg.hashsalt": name, "svg.fonttype": "none", "font.sans-serif": _FONTS}
    with matplotlib.rc_context(settings):
        for text in figure.texts:
            text.set_visible(False)
        figure.savefig(
            content,
            format="svg",
            facecolor="none",
            bbox_inches="tight",
            pad_inches=0.05,
            metadata={"Date": None, "Creator": None},
        )
    svg = content.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    for color, variable in _INKS.items():
        svg = svg.replace(color, variable)
    prefix = f"{name}-"
    svg = re.sub(r'\bid="', f'id="{prefix}', svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}", svg)
    # The page sets the width.
    return re.sub(r'<svg ([^>]*?)width="[^"]*" height="[^"]*"', r"<svg \1", svg, count=1) or svg


def write_png(draw: Callable[[], Figure], path: Path) -> Figure:
    """Draw a figure, write it as a PNG, and return it.

    If it cannot be drawn, this is logged and the figure says so, because no plot may fail a finished run.
    """
    try:
        figure = draw()
    except Exception:
        logger.warning("%s could not be drawn", path.name, exc_info=True)
        figure = new_figure(5, 3.6)
        figure.text(0.5, 0.5, "This plot could not be drawn; see the log.", ha="center", color=INK)
    figure.savefig(path, dpi=DPI, metadata={"Software": None})  # no version of Matplotlib
    return figure
