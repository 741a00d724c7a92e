"""Plot of an experiment, drawn where the command runs: the API has no matplotlib."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from service.wire.experiments import ExperimentView, MetricResult, VariantCurve

# A line of fewer points has markers: that of a single one is not visible.
_MOST_MARKERS = 30
# Heights of the first and the last pair below the interval of their variant, where variants are 1 apart.
_FIRST_PAIR, _LAST_PAIR = 0.1, 0.4


def draw(
    experiment: ExperimentView,
    curves: Sequence[VariantCurve],
    table: MetricResult | None,
    file: Path,
) -> None:
    """Draw the curves of a metric, and beside them its paired differences at the end, if there are any."""
    seeds = len(experiment.seeds)
    title = f"{experiment.name}, {seeds} seed{'' if seeds == 1 else 's'}"
    # Names may contain dollar signs.
    with rc_context({"text.parse_math": False}):
        figure = figure_of(title, curves, table)
        figure.savefig(file, dpi=150)


def figure_of(title: str, curves: Sequence[VariantCurve], table: MetricResult | None) -> Figure:
    """Return a figure with the curves, and beside them the paired differences, if there are any."""
    differences = [
        result for result in (table.variants if table else ()) if result.difference is not None
    ]
    # Not `pyplot`, which would look for a display.
    figure = Figure(figsize=(10 if differences else 6, 4.4), layout="constrained")
    figure.suptitle(textwrap.fill(title, 100 if differences else 60))
    axes = figure.subplots(1, 2 if differences else 1, squeeze=False)[0]
    _draw_curves(axes[0], curves, table.metric if table else "")
    if differences and table is not None:
        _draw_differences(axes[1], table)
    return figure


def _draw_curves(axes: Any, curves: Sequence[VariantCurve], metric: str) -> None:
    steps = sorted({step for curve in curves for step in curve.step})
    # Variants with a single evaluation would hide one another at its step, so each gets its own place.
    by_step = max((len(curve.step) for curve in curves), default=0) != 1
    for number, curve in enumerate(curves):
        color, seeds = f"C{number}", max(curve.n, default=0)
        places = curve.step if by_step else [number] * len(curve.step)
        marker = "o" if len(places) <= _MOST_MARKERS else ""
        label = f"{_wrapped(curve.variant)} ({seeds} seed{'' if seeds == 1 else 's'})"
        axes.plot(places, curve.mean, marker=marker, markersize=4, color=color, label=label)
        if len(places) == 1:
            axes.vlines(places, curve.min, curve.max, color=color, alpha=0.5)
        axes.fill_between(places, curve.min, curve.max, color=color, alpha=0.15, linewidth=0)
    if by_step:
        axes.set(xlabel="step")
    else:
        axes.set(xticks=[], xlabel=f"after step {', '.join(map(str, steps))}")
    axes.set(ylabel=metric, title="mean and range over seeds")
    axes.margins(0.1)
    axes.legend()


def _draw_differences(axes: Any, table: MetricResult) -> None:
    """Draw each pair of jobs as a point, their mean, and its t interval."""
    baseline = next(result for result in table.variants if result.difference is None)
    rows = [(number, result) for number, result in enumerate(table.variants) if result.difference]
    axes.axvline(0, color="0.6", linewidth=1)
    for row, (number, result) in enumerate(rows):
        color, difference = f"C{number}", result.difference
        assert difference is not None
        pairs = [
            value - baseline.values[seed]
            for seed, value in sorted(result.values.items())
            if seed in baseline.values
        ]
        # Below one another, by seed: equal differences are frequent with few images.
        heights = row + np.linspace(_FIRST_PAIR, _LAST_PAIR, len(pairs))
        axes.scatter(pairs, heights, color=color, alpha=0.5, s=20)
        axes.plot([difference.mean], [row], marker="|", markersize=14, color=color)
        if difference.t_interval is not None:
            axes.plot(difference.t_interval, [row, row], color=color, linewidth=1.5)
    axes.set_yticks(range(len(rows)), [_wrapped(result.variant) for _, result in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set(
        xlabel=f"difference in {table.metric}\n(pairs by seed, their mean, 95 % t interval)",
        title=_wrapped(f"minus {baseline.variant}"),
    )


def _wrapped(name: str) -> str:
    return textwrap.fill(name, 30)
