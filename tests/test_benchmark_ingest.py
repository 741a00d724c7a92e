"""Arithmetic of the benchmark of ingest."""

from __future__ import annotations

import pytest

from benchmarks.ingest.__main__ import kill_points
from benchmarks.ingest.watched import growth


def test_kills_are_spread_evenly_over_both_phases() -> None:
    points = kill_points(5)
    assert [phase for phase, _ in points] == ["index", "index", "prepare", "prepare", "prepare"]
    assert [share for _, share in points] == pytest.approx([0.2, 0.6, 0.0, 0.4, 0.8])


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([9, 9, 50, 40, 50, 45, 50, 48], 0.0),  # flat, after imports
        ([9, 9, 10, 20, 30, 40, 50, 60], 40.0),  # what is written piles up
        ([9, 9, 50, 40, 30, 30, 20, 20], -30.0),
        ([5, 7], 0.0),  # too short to tell
    ],
)
def test_growth_compares_the_last_quarter_with_the_second(
    samples: list[int], expected: float
) -> None:
    assert growth(samples) == expected
