"""Series as columns over common steps, thinned out without losing a spike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from service.jobs.schemas import MetricColumns


def columns(points: Iterable[Sequence[object]], max_points: int | None = None) -> MetricColumns:
    """Put points into columns.

    Args:
        points: (name, step, time, value); of a name and step that come twice the last counts.
        max_points: about as many steps are kept, and at least two for each series: the first and
            the last step, and where each series has its least and its greatest value in each of
            equally many stretches of steps.
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
    if max_points is not None and len(steps) > max_points:
        steps = sorted(_landmarks(steps, series, max_points))
    return MetricColumns(
        step=steps,
        time=[times[step] for step in steps],
        values={name: [of.get(step) for step in steps] for name, of in series.items()},
    )


def _landmarks(steps: list[int], series: dict[str, dict[int, float]], max_points: int) -> set[int]:
    stretches = max(1, (max_points - 2) // (2 * len(series)))
    kept = {steps[0], steps[-1]}
    for of in series.values():
        for number in range(stretches):
            low = number * len(steps) // stretches
            high = (number + 1) * len(steps) // stretches
            present = [step for step in steps[low:high] if step in of]
            if present:
                kept |= {min(present, key=of.__getitem__), max(present, key=of.__getitem__)}
    return kept
