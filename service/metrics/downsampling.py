"""Selection of the steps that a downsampled answer keeps."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

Point = Sequence[Any]
"""(name, step, value)"""


def steps_to_keep(points: Iterable[Point], first: int, last: int, intervals: int) -> set[int]:
    """Return the first and last step, and the steps of each series' minima and maxima in equal intervals.

    Among equal values, the first counts.

    Args:
        points: points sorted by name and step; the last of duplicates is used.
        first: the smallest step.
        last: the greatest step.
        intervals: number of intervals.
    """
    kept, span = {first, last}, last - first + 1
    for _, series in groupby(_without_superseded(points), key=itemgetter(0)):
        end = least_at = greatest_at = first
        least = greatest = 0.0
        for _, step, value in series:
            if step >= end:  # the first point of an interval
                kept |= {least_at, greatest_at}
                number = (step - first) * intervals // span
                end = first - (number + 1) * span // -intervals
                least = greatest = value
                least_at = greatest_at = step
            elif value < least:
                least, least_at = value, step
            elif value > greatest:
                greatest, greatest_at = value, step
        kept |= {least_at, greatest_at}
    return kept


def _without_superseded(points: Iterable[Point]) -> Iterator[Point]:
    """Yield the last of the points with the same name and step."""
    name, step, newest = None, None, None
    for point in points:
        if newest is not None and (point[1] != step or point[0] != name):
            yield newest
        name, step, _ = newest = point
    if newest is not None:
        yield newest
