"""Draw the pictures of docs/regularizers.md: what DAR and SEC do to embeddings.

`python -m tools.regularizer_pictures` writes them to docs/images: two toy examples, computed in a second with the
regularizers of a job, and what benchmarks/ablation.py has measured.
"""

import json
import math
from pathlib import Path

import matplotlib
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Transform, blended_transform_factory
from torch import Tensor

from dasl_core.plots.style import (
    BLUE,
    GRID,
    INK,
    MUTED,
    ORANGE,
    add_axes,
    heading,
    new_figure,
    plain,
)
from dasl_core.regularizers import SphericalEmbeddingConstraint, difference_alignment
from service.experiments.statistics import paired_difference

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
RESULTS = ROOT / "benchmarks" / "results" / "ablation.json"
SEEDS = range(6)
R1 = "recall_at_1"
# Tables of the ablation: their name, the subject whose accuracy they compare, and the term beside DAR.
MEASURED = {
    "fonts/simclr": ("SimCLR, fonts", "backbone", "koleo"),
    "fonts/byol": ("BYOL, fonts", "backbone", "koleo"),
    "emoji/simclr": ("SimCLR, emoji", "backbone", "koleo"),
    "emoji/npair": ("N-pair, emoji", "embedding", "sec"),
}
LEGEND = {"alone": MUTED, "+ DAR": BLUE, "+ KoLeo, + SEC (N-pair)": ORANGE}


def dar_of(embeddings: Tensor) -> Tensor:
    """Compute R of distances over all pairs: the term of a job without the sampling of a chain."""
    labels = torch.arange(len(embeddings))
    return difference_alignment(embeddings, labels, difference="distance", estimator="full")


def descend(embeddings: Tensor, loss: torch.nn.Module, steps: int, rate: float) -> Tensor:
    """Return embeddings after gradient descent on a loss."""
    moved = embeddings.clone().requires_grad_()
    for _ in range(steps):
        (gradient,) = torch.autograd.grad(loss(moved), moved)
        moved = (moved - rate * gradient).detach().requires_grad_()
    return moved.detach()


def draw_triangles() -> Figure:
    """Three embeddings on a circle: DAR's value if distances differ, if they are equal, and at a collapse."""
    figure = new_figure(7.2, 2.9)
    heading(
        figure,
        "DAR is 0 when all distances are equal",
        "Three normalized embeddings, and their distances",
    )
    cases = [
        ("distances differ", (95, 150, 330)),
        ("all equal", (90, 210, 330)),
        ("collapsed", (90, 90, 90)),
    ]
    for column, (title, angles) in enumerate(cases):
        radians = torch.tensor(angles) * math.pi / 180
        points = torch.stack([radians.cos(), radians.sin()], dim=1)
        axes = add_axes(figure, 0.2 + 2.35 * column, 0.95, 2.1, 1.85)
        plain(axes, f"{title}: R = {abs(float(dar_of(points))):.2f}")
        draw_on_circle(axes, points)
    return figure


def draw_on_circle(axes: Axes, points: Tensor) -> None:
    """Draw embeddings on the unit circle, and the distance of each pair beside its line."""
    axes.axis("off")
    axes.set(xlim=(-1.6, 1.6), ylim=(-1.25, 1.35), aspect="equal")
    turn = torch.linspace(0, 2 * math.pi, 90)
    axes.plot(turn.cos(), turn.sin(), color=GRID, linewidth=1)
    for first, second in ((0, 1), (1, 2), (2, 0)):
        pair = points[[first, second]]
        length = float((pair[0] - pair[1]).norm())
        axes.plot(*pair.T, color=BLUE, linewidth=1.4)
        if length:
            x, y = pair.mean(dim=0).tolist()
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
            axes.text(
                x, y, f"{length:.2f}", fontsize=8, color=MUTED, ha="center", va="center", bbox=box
            )
    axes.plot(*points.T, "o", color=ORANGE, markersize=7)


def draw_measured() -> Figure:
    """What benchmarks/ablation.py measured of DAR and SEC, seed by seed: spread of distances, and accuracy."""
    runs = json.loads(RESULTS.read_text(encoding="utf-8"))["runs"]
    figure = new_figure(7.2, 3.75)
    heading(
        figure,
        "What they did to trained networks",
        "Small CNN, 20 epochs, share of 10 %; held-out classes; a point is a seed, a bar a 95 % interval",
    )
    spread = add_axes(figure, 0.3, 1.05, 2.9, 2.1)
    plain(spread, "Spread of distances between classes")
    spread.set_xlabel("Standard deviation of the distances", fontsize=8, color=MUTED)
    added = add_axes(figure, 4.0, 1.05, 2.9, 2.1)
    plain(added, "Change of R@1")
    added.axvline(0, color=MUTED, linewidth=0.9)
    added.set_xlabel(
        "Points, of the same seed with the term minus without", fontsize=8, color=MUTED
    )
    for row, (table, (name, subject, rival)) in enumerate(MEASURED.items()):
        base: dict[int, float] = {}
        for offset, (term, color) in zip(
            (0.0, -0.22, 0.22),
            zip(("none", "dar", rival), LEGEND.values(), strict=True),
            strict=True,
        ):
            metrics = {seed: runs[f"{table}, {term}/{seed}"]["metrics"] for seed in SEEDS}
            y = -row + offset
            deviations = [m["backbone"]["phi_class_distance_std"] for m in metrics.values()]
            draw_seeds(spread, deviations, y, color)
            values = {seed: 100 * m[subject][R1] for seed, m in metrics.items()}
            base = base or values
            if term != "none":
                draw_seeds(added, [values[seed] - base[seed] for seed in SEEDS], y, color)
                difference = paired_difference(values, base)
                assert difference is not None, "every seed has a pair"
                assert difference.t_interval is not None, "there are several"
                added.plot(difference.t_interval, [y, y], color=color)
        spread.text(0.005, -row + 0.42, name, fontsize=8, color=INK, transform=row_of(spread))
    for axes in (spread, added):
        axes.set(ylim=(-3.6, 0.8), yticks=[])
    for x, (label, color) in zip((0.02, 0.12, 0.24), LEGEND.items(), strict=True):
        figure.text(x, 0.03, f"● {label}", fontsize=8, color=color)
    return figure


def row_of(axes: Axes) -> Transform:
    """Return coordinates with x as a share of the width."""
    return blended_transform_factory(axes.transAxes, axes.transData)


def draw_seeds(axes: Axes, values: list[float], y: float, color: str) -> None:
    """Draw a point for each seed in one row."""
    axes.plot(values, [y] * len(values), "o", color=color, markersize=4)


def draw_norms() -> Figure:
    """Embeddings before they are normalized: norms that differ, the same after SEC, and why it matters."""
    figure = new_figure(7.2, 3.1)
    heading(
        figure,
        "SEC makes norms equal",
        "Embeddings before they are normalized; the dashed circle is their mean norm",
    )
    generator = torch.Generator().manual_seed(1)
    before = torch.randn(60, 2, generator=generator)
    before = (
        before
        / before.norm(dim=1, keepdim=True)
        * (0.35 + 1.5 * torch.rand(60, 1, generator=generator))
    )
    after = descend(before, SphericalEmbeddingConstraint(), steps=60, rate=2.0)
    for column, (title, points) in enumerate(
        (("without SEC", before), ("after descent on SEC", after))
    ):
        axes = add_axes(figure, 0.2 + 2.35 * column, 1.0, 2.1, 1.95)
        spread = float(points.norm(dim=1).std())
        plain(axes, f"{title}: std {spread:.2f}")
        axes.axis("off")
        axes.set(xlim=(-2, 2), ylim=(-2, 2), aspect="equal")
        turn, radius = torch.linspace(0, 2 * math.pi, 90), float(points.norm(dim=1).mean())
        axes.plot(radius * turn.cos(), radius * turn.sin(), "--", color=MUTED, linewidth=0.9)
        axes.plot(*points.T, "o", color=BLUE, markersize=3.2)
    axes = add_axes(figure, 4.9, 1.0, 2.1, 1.95)
    plain(axes, "longer ones turn less")
    draw_turns(axes)
    return figure


def draw_turns(axes: Axes) -> None:
    """Draw a step of one length, at right angles to a short and to a long embedding."""
    axes.axis("off")
    axes.set(xlim=(-0.2, 2.3), ylim=(-0.2, 2.3), aspect="equal")
    for norm, height, color in ((0.7, 1.2, ORANGE), (2.0, 0.2, BLUE)):
        arrow = {"arrowstyle": "-|>", "color": color, "linewidth": 1.4, "shrinkA": 0, "shrinkB": 0}
        moved = (norm, height + 0.5)
        axes.annotate("", (norm, height), (0, height), arrowprops=arrow)
        axes.annotate("", moved, (norm, height), arrowprops={**arrow, "color": MUTED})
        axes.plot((0, norm), (height, height + 0.5), color=color, linewidth=1, linestyle=":")
        degrees = math.degrees(math.atan2(0.5, norm))
        axes.text(
            0.05, height + 0.55, f"norm {norm}: turned by {degrees:.0f}°", fontsize=8, color=INK
        )


def save(figure: Figure, name: str) -> None:
    """Write a figure as SVG, the same bytes at each call."""
    with matplotlib.rc_context(
        {"svg.hashsalt": name, "svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans"]}
    ):
        figure.savefig(IMAGES / name, metadata={"Date": None, "Creator": None})


def main() -> None:
    """Write all pictures."""
    save(draw_triangles(), "dar-distances.svg")
    save(draw_measured(), "regularizers-measured.svg")
    save(draw_norms(), "sec-norms.svg")


if __name__ == "__main__":
    main()
