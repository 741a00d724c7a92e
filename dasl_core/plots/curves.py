"""The curves of a run: losses, accuracies with their baselines, and the state of the embeddings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from dasl_core.headlines import PLOTTED, format_metric, is_share
from dasl_core.plots import style
from dasl_core.plots.facts import RunFacts, metric_title
from dasl_core.vocabulary import BEFORE_TRAINING, Subject

# Larger losses would break the scale, and leave a gap as NaN does.
LARGEST_LOSS = 1e100
_TOP = 0.72  # inches of the heading
_MARKED = 40  # curves with more points have no markers
_REGULARIZERS = {"loss_dar": "DAR", "loss_sec": "SEC"}


Label = tuple[float, str, str]
"""The label of a line: its height, text and color."""

# Trained subjects with their colors, and the same subjects before training.
_TRAINED: tuple[tuple[Subject, str, tuple[Subject, ...]], ...] = (
    ("backbone", style.BLUE, BEFORE_TRAINING),
    ("embedding", style.PURPLE, ()),
)


@dataclass(frozen=True)
class Panel:
    """One pair of axes: its title, a note, and the function that draws it."""

    title: str
    note: str
    draw: Callable[[Axes], list[Label]]


def draw_curves(run: RunFacts, path: Path) -> Figure:
    """Write a PNG of a run's curves, and return the figure."""
    figure = style.drawn(lambda: curves(run), path.name)
    style.save_png(figure, path)
    return figure


def curves(run: RunFacts) -> Figure:
    """Draw the measured curves: main panels in rows of three, then small multiples in rows of four or five."""
    main, small = _main_panels(run), _small_panels(run)
    rows, columns = -(-len(main) // 3), min(3, max(len(main), 2 if small else 1))
    width = 4.6 * columns
    in_row = max(1, int(width // 2.6))
    small_rows = -(-len(small) // in_row)
    figure = style.new_figure(width, _TOP + 3.05 * rows + 2.2 * small_rows)
    style.heading(figure, run.spec.name, run.subtitle)
    places = [
        (4.6 * (number % columns), _TOP + 3.05 * (number // columns), 4.6 - 1.85, 2.05, panel)
        for number, panel in enumerate(main)
    ]
    step = width / in_row
    places += [
        (step * (number % in_row), _TOP + 3.05 * rows + 2.2 * (number // in_row), step - 0.85, 1.25, panel)
        for number, panel in enumerate(small)
    ]  # fmt: skip
    last = float(max(len(run.losses), *(e["epoch"] for e in run.evaluations), 1))
    for left, top, wide, tall, panel in places:
        axes = style.add_axes(figure, left + 0.6, top + 0.5, wide, tall)
        style.plain(axes, panel.title, panel.note)
        style.epochs_axis(axes, last)
        style.label_lines(figure, axes, panel.draw(axes))
    return figure


def _main_panels(run: RunFacts) -> list[Panel]:
    terms = {name for means in run.epochs for name in means if name.startswith("loss_")}
    base = f"loss_{run.spec.method.name}"
    others = sorted(terms - {base})
    chance = run.anchors.chance_loss
    note = "Mean of each epoch"
    if chance is not None:
        note += "; chance: all candidates alike"
    panels = [Panel("Loss", note, lambda axes: _loss(axes, run, base if others else None))]
    if others:
        panels.append(
            Panel("Regularizers", "Weighted terms of the loss",
                  lambda axes: _terms(axes, run, others))
        )  # fmt: skip
    for metric in PLOTTED:
        if run.series(metric, *BEFORE_TRAINING, "backbone", "embedding"):
            note = _note(run, metric)
            panels.append(
                Panel(metric_title(metric), note, partial(_metric, run=run, metric=metric))
            )
    return panels


def _note(run: RunFacts, metric: str) -> str:
    notes = {
        "knn_top1": "Class by the nearest training images",
        "recall_at_1": "Nearest held-out image is of the class",
        "instance_recall_at_1": "A random view finds its own image",
        "effective_rank": "Dimensions that the features use (RankMe)",
    }
    if is_share(metric):
        return f"{notes[metric]}; {run.resolution(metric)}"
    return notes[metric]


def _small_panels(run: RunFacts) -> list[Panel]:
    panels = []
    measured = {name for means in run.epochs for name in means}
    if "embedding_norm" in measured:
        panels.append(Panel("Norm of embeddings", "Before normalization; ± std",
                            lambda axes: _norms(axes, run)))  # fmt: skip
    for metric, title, note in (
        ("uniformity", "Uniformity", "0: one point; lower: spread"),
        ("alignment", "Alignment of views", "0 at a collapse, too"),
    ):
        if run.series(metric, "backbone", "embedding"):
            panels.append(Panel(title, note, partial(_plain_metric, run=run, metric=metric)))
    if "images_per_second" in measured:
        panels.append(Panel("Speed", "Images per second",
                            lambda axes: _epoch_means(axes, run, "images_per_second")))  # fmt: skip
    if "time_data_wait" in measured:
        panels.append(Panel("Waiting for data", "Share of the time",
                            lambda axes: _epoch_means(axes, run, "time_data_wait")))  # fmt: skip
    return panels


def _by_epoch(run: RunFacts, name: str) -> tuple[list[int], list[float]]:
    """Return the epochs and means of a step metric."""
    values = [means.get(name, math.nan) for means in run.epochs]
    values = [value if abs(value) < LARGEST_LOSS else math.nan for value in values]
    return list(range(1, len(values) + 1)), values


def _loss(axes: Axes, run: RunFacts, base: str | None) -> list[Label]:
    losses = [loss if abs(loss) < LARGEST_LOSS else math.nan for loss in run.losses]
    labels = []
    epochs = range(1, len(losses) + 1)
    label = "all terms" if base else "loss"
    _line(axes, list(epochs), losses, style.BLUE)
    labels += _at_end(losses, f"{label} {{}}", style.BLUE)
    if base is not None:
        x, y = _by_epoch(run, base)
        _line(axes, x, y, style.PURPLE)
        labels += _at_end(y, f"{run.method.split(' + ')[0]} {{}}", style.PURPLE)
    chance = run.anchors.chance_loss
    if chance is not None:
        axes.axhline(chance, color=style.MUTED, linestyle=(0, (1, 2)), linewidth=1.2)
        labels.append((chance, f"chance {chance:.3g}", style.MUTED))
    return labels


def _terms(axes: Axes, run: RunFacts, names: Sequence[str]) -> list[Label]:
    labels = []
    for color, name in zip(style.PALETTE[1:], names, strict=False):
        x, y = _by_epoch(run, name)
        _line(axes, x, y, color)
        label = _REGULARIZERS.get(name, name.removeprefix("loss_"))
        labels += _at_end(y, f"{label} {{}}", color)
    return labels


def _metric(axes: Axes, run: RunFacts, metric: str) -> list[Label]:
    labels = []
    start, raw = run.before(metric), run.raw(metric)
    chance = run.anchors.chance.get(metric)
    for subject, color, before in _TRAINED:
        points = run.series(metric, *before, subject)
        if points:
            x, y = ([point[i] for point in points] for i in (0, 1))
            _line(axes, x, y, color)
            after = y[1:] if before else y
            if after:
                name = "trained" if before else "embedding"
                labels.append((after[-1], f"{name} {format_metric(metric, after[-1])}", color))
    for value, label, color, pattern in (
        (raw, "raw pixels", style.BROWN, (0, (4, 2))),
        (start, "start", style.MUTED, (0, (6, 2, 1, 2))),
        (chance, "chance", style.MUTED, (0, (1, 2))),
    ):
        if value is not None:
            axes.axhline(value, color=color, linestyle=pattern, linewidth=1.2)
            labels.append((value, f"{label} {format_metric(metric, value)}", color))
    if is_share(metric):
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))
        values = [y for y, _, _ in labels] + [
            p[1] for p in run.series(metric, "backbone", "embedding")
        ]
        top = max([*values, 0.01])
        axes.set_ylim(0, min(1.02, top * 1.12) if top < 1 else 1.02)
    elif run.anchors.largest_rank is not None:
        most = run.anchors.largest_rank
        labels_top = max([y for y, _, _ in labels], default=1.0)
        axes.set_ylim(0, None)
        if most <= 4 * labels_top:
            axes.axhline(most, color=style.MUTED, linestyle=(0, (1, 2)), linewidth=1.2)
            labels.append((most, f"largest {most}", style.MUTED))
            axes.set_ylim(0, most * 1.06)
    return labels


def _plain_metric(axes: Axes, run: RunFacts, metric: str) -> list[Label]:
    for subject, color, before in _TRAINED:
        points = run.series(metric, *before, subject)
        if points:
            _line(axes, [x for x, _ in points], [y for _, y in points], color)
    return []


def _norms(axes: Axes, run: RunFacts) -> list[Label]:
    x, mean = _by_epoch(run, "embedding_norm")
    _, deviation = _by_epoch(run, "embedding_norm_std")
    low = [m - d for m, d in zip(mean, deviation, strict=True)]
    high = [m + d for m, d in zip(mean, deviation, strict=True)]
    axes.fill_between(x, low, high, color=style.BLUE, alpha=0.18, linewidth=0)
    _line(axes, x, mean, style.BLUE)
    return []


def _epoch_means(axes: Axes, run: RunFacts, name: str) -> list[Label]:
    x, y = _by_epoch(run, name)
    _line(axes, x, y, style.BLUE)
    axes.set_ylim(0, None)
    if name.startswith("time_"):
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
        axes.set_ylim(0, max([0.1, *(value for value in y if math.isfinite(value))]) * 1.1)
    else:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
    return []


def _line(axes: Axes, x: Sequence[float], y: Sequence[float], color: str) -> None:
    marker = "o" if len(x) <= _MARKED else None
    axes.plot(x, y, color=color, marker=marker, markersize=3.5, linewidth=1.6, clip_on=False)


def _at_end(values: Sequence[float], text: str, color: str) -> list[Label]:
    """Return the label of a line at its last finite value."""
    finite = [value for value in values if math.isfinite(value)]
    return [(finite[-1], text.format(f"{finite[-1]:.3g}"), color)] if finite else []
