"""Thinning of metric points: extremes of every bucket stay, the newest steps stay complete."""

from collections.abc import Iterable
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.metrics import thinning
from service.metrics.thinning import sections_due

FULL, NARROWEST = 16, 4
Series = dict[int, float]


@pytest.fixture(autouse=True, scope="module")
def _small() -> object:
    """Thin after a few steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thinning, "FULL_STEPS", FULL)
        patch.setattr(thinning, "NARROWEST", NARROWEST)
        yield


def extremes(points: Iterable[tuple[int, float]], width: int) -> set[int]:
    """Return what `service.metrics.repository.thin` keeps of points (step, value)."""
    steps = set()
    for _, bucket in groupby(points, key=lambda point: point[0] // width):
        in_bucket = list(bucket)
        steps.add(min(in_bucket, key=lambda point: point[1])[0])
        steps.add(max(in_bucket, key=lambda point: point[1])[0])
    return steps


def thinned(series: Series, before: int, newest: int) -> Series:
    for width, start, stop in sections_due(before, newest):
        inside = {step: value for step, value in series.items() if start <= step < stop}
        kept = extremes(inside.items(), width)
        series = {s: v for s, v in series.items() if s not in inside or s in kept}
    return series


def buckets(newest: int) -> list[range]:
    """Return the buckets that everything is divided into after so many steps."""
    result, begin = [], 0
    for width, _, stop in reversed(sections_due(0, newest)):
        # The widest, and so the oldest, first.
        result += [
            range(start, start + width) for start in range(begin // width * width, stop, width)
        ]
        begin = stop
    return result


@given(
    st.dictionaries(st.integers(0, 999), st.integers(-3, 3).map(float), min_size=1),
    st.lists(st.integers(1, 999), max_size=8),
)
def test_thinning_in_any_strides_keeps_the_extremes_of_each_bucket(
    series: Series, stops: list[int]
) -> None:
    series = dict(sorted(series.items()))
    newest, left, before = max(series), series, 0
    for stop in [*sorted({stop for stop in stops if stop < newest}), newest]:
        left, before = thinned(left, before, stop), stop
    assert left.items() <= series.items()
    assert {s: v for s, v in series.items() if s > newest - FULL}.items() <= left.items()
    for bucket in buckets(newest):
        every, kept = ([s[step] for step in bucket if step in s] for s in (series, left))
        assert bool(every) == bool(kept)
        if every:
            assert (min(kept), max(kept)) == (min(every), max(every))
    assert thinned(left, 0, newest) == left
    assert thinned(series, 0, newest) == left


def test_thinned_series_grows_with_the_logarithm_of_its_length() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thinning, "FULL_STEPS", 10_000)
        patch.setattr(thinning, "NARROWEST", 32)
        for newest, most in ((20_000, 11_000), (10**6, 16_000), (10**7, 18_000)):
            points = sum(
                2 * len(range(0, stop - start, width)) for width, start, stop in _levels(newest)
            )
            assert 10_000 < points + 10_000 + 32 < most


def _levels(newest: int) -> list[tuple[int, int, int]]:
    sections = sections_due(0, newest)
    ends = [section.stop for section in sections[1:]] + [0]
    return [(width, end, stop) for (width, _, stop), end in zip(sections, ends, strict=True)]


def test_sections_due_are_aligned_and_only_what_is_new() -> None:
    assert sections_due(0, FULL + NARROWEST - 1) == []
    assert sections_due(0, FULL + NARROWEST) == [(NARROWEST, 0, NARROWEST)]
    assert sections_due(FULL + NARROWEST, FULL + 2 * NARROWEST) == [(4, 4, 8)]
    assert sections_due(39, 40) == [(4, 20, 24), (8, 0, 8)]
