"""The curves of a run: losses, accuracies with their baselines, and the state of the embeddings."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
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
_NOTES = {
    "knn_top1": "Class by the nearest training images",
    "recall_at_1": "Nearest held-out image is of the class",
    "instance_recall_at_1": "A random view finds its own image",
    "effective_rank": "Dimensions that the features use (RankMe)",
}
_DOTTED = (1, 2)

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
    panels = [Panel("Loss", note, partial(_loss, run=run, base=base if others else None))]
    if others:
        panels.append(
            Panel("Regularizers", "Weighted terms of the loss", partial(_terms, run=run, names=others))
        )  # fmt: skip
    for metric in PLOTTED:
        if run.series(metric, *BEFORE_TRAINING, "backbone", "embedding"):
            note = _NOTES[metric]
            if is_share(metric):
                note += f"; {run.resolution(metric)}"
            panels.append(
                Panel(metric_title(metric), note, partial(_metric, run=run, metric=metric))
            )
    return panels


def _small_panels(run: RunFacts) -> list[Panel]:
    panels = []
    measured = {name for means in run.epochs for name in means}
    if "embedding_norm" in measured:
        note = "Before normalization; ± std"
        panels.append(Panel("Norm of embeddings", note, partial(_norms, run=run)))
    for metric, title, note in (
        ("uniformity", "Uniformity", "0: one point; lower: spread"),
        ("alignment", "Alignment of views", "0 at a collapse, too"),
    ):
        if run.series(metric, "backbone", "embedding"):
            panels.append(Panel(title, note, partial(_measured, run=run, metric=metric)))
    for name, title, note in (
        ("images_per_second", "Speed", "Images per second"),
        ("time_data_wait", "Waiting for data", "Share of the time"),
    ):
        if name in measured:
            panels.append(Panel(title, note, partial(_resource, run=run, name=name)))
    return panels


def _means(run: RunFacts, name: str) -> list[float]:
    """Return the mean of a step metric in each epoch."""
    return _bounded([means.get(name, math.nan) for means in run.epochs])


def _bounded(values: Sequence[float]) -> list[float]:
    return [value if abs(value) < LARGEST_LOSS else math.nan for value in values]


def _loss(axes: Axes, run: RunFacts, base: str | None) -> list[Label]:
    labels = _by_epoch(axes, _bounded(run.losses), "all terms" if base else "loss", style.BLUE)
    if base is not None:
        name = run.method.split(" + ")[0]
        labels += _by_epoch(axes, _means(run, base), name, style.PURPLE)
    chance = run.anchors.chance_loss
    if chance is not None:
        labels.append(_level(axes, chance, f"chance {chance:.3g}"))
    return labels


def _terms(axes: Axes, run: RunFacts, names: Sequence[str]) -> list[Label]:
    labels = []
    for color, name in zip(style.PALETTE[1:], names, strict=False):
        label = _REGULARIZERS.get(name, name.removeprefix("loss_"))
        labels += _by_epoch(axes, _means(run, name), label, color)
    return labels


def _metric(axes: Axes, run: RunFacts, metric: str) -> list[Label]:
    labels = _measured(axes, run, metric, labeled=True)
    for value, label, color, pattern in (
        (run.raw(metric), "raw pixels", style.BROWN, (4, 2)),
        (run.before(metric), "start", style.MUTED, (6, 2, 1, 2)),
        (run.anchors.chance.get(metric), "chance", style.MUTED, _DOTTED),
    ):
        if value is not None:
            text = f"{label} {format_metric(metric, value)}"
            labels.append(_level(axes, value, text, color, pattern))
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
            labels.append(_level(axes, most, f"largest {most}"))
            axes.set_ylim(0, most * 1.06)
    return labels


def _measured(axes: Axes, run: RunFacts, metric: str, *, labeled: bool = False) -> list[Label]:
    """Draw a metric of every evaluation; with `labeled`, return labels of the trained values."""
    labels = []
    for subject, color, before in _TRAINED:
        points = run.series(metric, *before, subject)
        if points:
            _line(axes, [x for x, _ in points], [y for _, y in points], color)
        if labeled and (after := points[1:] if before else points):
            name = "trained" if before else "embedding"
            last = after[-1][1]
            labels.append((last, f"{name} {format_metric(metric, last)}", color))
    return labels


def _norms(axes: Axes, run: RunFacts) -> list[Label]:
    mean, deviation = np.array(_means(run, "embedding_norm")), _means(run, "embedding_norm_std")
    x = range(1, len(mean) + 1)
    axes.fill_between(
        x, mean - deviation, mean + deviation, color=style.BLUE, alpha=0.18, linewidth=0
    )
    _line(axes, x, mean.tolist(), style.BLUE)
    return []


def _resource(axes: Axes, run: RunFacts, name: str) -> list[Label]:
    y = _means(run, name)
    _by_epoch(axes, y, "", style.BLUE)
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


def _by_epoch(axes: Axes, values: Sequence[float], name: str, color: str) -> list[Label]:
    """Draw the values of the epochs; return the label of the line at its last finite value."""
    _line(axes, range(1, len(values) + 1), values, color)
    finite = [value for value in values if math.isfinite(value)]
    return [(finite[-1], f"{name} {finite[-1]:.3g}", color)] if finite else []


def _level(
    axes: Axes, y: float, text: str, color: str = style.MUTED, dashes: tuple[int, ...] = _DOTTED
) -> Label:
    """Draw a horizontal line, and return its label."""
    axes.axhline(y, color=color, linestyle=(0, dashes), linewidth=1.2)
    return y, text, color
