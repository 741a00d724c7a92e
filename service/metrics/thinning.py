"""Thinning of old metric points, so that a series grows with the logarithm of its length.

The newest `FULL_STEPS` steps of a job keep every point. Older steps are divided into buckets, which keep the points
with the minimum and the maximum. The width of the buckets doubles with the age. As the extremes of a wide bucket are
among the extremes of its narrow ones, points can be thinned again at any time.
"""

from itertools import count
from typing import NamedTuple

FULL_STEPS = 10_000
"""Number of a job's newest steps that keep every point, and of the points that a series always keeps."""
NARROWEST = 32
"""Width in steps of the narrowest buckets, for steps that are up to `2 * FULL_STEPS` old."""


class Section(NamedTuple):
    """Steps from `start` to before `stop`, to be thinned in buckets of `width` steps."""

    width: int
    start: int
    stop: int


def sections_due(thinned: int, newest: int) -> list[Section]:
    """Return the sections to thin after `newest` steps if thinning was complete after `thinned` steps, newest first."""
    sections: list[Section] = []
    for level in count():
        width = NARROWEST << level
        start, stop = (
            max(0, (step - (FULL_STEPS << level)) // width * width) for step in (thinned, newest)
        )
        if stop == 0:
            return sections
        if start < stop:
            sections.append(Section(width, start, stop))
    raise AssertionError("every level is older than the one before")
