"""Arrangement of metrics in columns over common steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from service.jobs.schemas import MetricColumns


def columns(points: Iterable[Sequence[object]]) -> MetricColumns:
    """Return metric points as columns over common steps.

    Args:
        points: (name, step, time, value); of duplicates of name and step, the last one is used.
    """
    series: dict[str, dict[int, float]] = {}
    times: dict[int, float] = {}
    for name, step, time, value in points:
        assert isinstance(name, str)
        assert isinstance(step, int)
        assert isinstance(time, float)
        assert isinstance(value, float)
        series.setdefault(name, {})[step] = value
        # If a step was repeated, the newest attempt has the latest time.
        times[step] = max(time, times.get(step, time))
    steps = sorted(times)
    return MetricColumns(
        step=steps,
        time=[times[step] for step in steps],
        values={name: [by_step.get(step) for step in steps] for name, by_step in series.items()},
    )
