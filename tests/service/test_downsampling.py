"""Metric columns: thinned out, and no spike lost."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from service.jobs.metrics import columns


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 500), st.floats(-5, 5)), max_size=300
    ),
    st.integers(2, 60),
)
def test_extremes_first_and_last_survive(
    raw: list[tuple[str, int, float]], max_points: int
) -> None:
    points = sorted((name, step, float(step), value) for name, step, value in raw)
    whole = columns(points)
    thin = columns(points, max_points)
    names = len(whole.values)
    assert thin.values.keys() == whole.values.keys()
    assert len(thin.step) <= max(max_points, 2 * names + 2)
    assert thin.step == sorted(set(thin.step))
    if whole.step:
        assert (thin.step[0], thin.step[-1]) == (whole.step[0], whole.step[-1])
    full = {name: dict(zip(whole.step, of, strict=True)) for name, of in whole.values.items()}
    for name, of in thin.values.items():
        kept = [value for value in of if value is not None]
        every = [value for value in full[name].values() if value is not None]
        assert (min(kept), max(kept)) == (min(every), max(every))
        assert all(full[name][step] == value for step, value in zip(thin.step, of, strict=True))


def test_every_stretch_keeps_its_spike() -> None:
    rng = random.Random(0)
    spikes = {1234: 50.0, 5678: -50.0, 9000: 30.0}
    points = [("loss", step, 0.0, spikes.get(step, rng.random())) for step in range(10_000)]
    thin = columns(points, 100)
    assert len(thin.step) <= 100
    assert spikes.keys() <= set(thin.step)


def test_later_point_of_a_step_counts() -> None:
    both = columns([("loss", 1, 10.0, 5.0), ("loss", 1, 20.0, 4.0)])
    assert (both.step, both.time, both.values) == ([1], [20.0], {"loss": [4.0]})
