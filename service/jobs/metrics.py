"""Series as columns over common steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from service.jobs.schemas import MetricColumns


def columns(points: Iterable[Sequence[object]]) -> MetricColumns:
    """Put points into columns.

    Args:
        points: (name, step, time, value); of a name and step that come twice the last counts.
    """
    series: dict[str, dict[int, float]] = {}
    times: dict[int, float] = {}
    for name, step, time, value in points:
        assert isinstance(name, str)
        assert isinstance(step, int)
        assert isinstance(time, float)
        assert isinstance(value, float)
        series.setdefault(name, {})[step] = value
        # The value of a newer attempt was also taken later.
        times[step] = max(time, times.get(step, time))
    steps = sorted(times)
    return MetricColumns(
        step=steps,
        time=[times[step] for step in steps],
        values={name: [of.get(step) for step in steps] for name, of in series.items()},
    )
