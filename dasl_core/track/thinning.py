"""Thinning of long runs' points for trackers."""

import math
from dataclasses import dataclass

from dasl_core.track.tracker import Point

# The number that TensorBoard shows of a series.
POINTS_PER_STRIDE = 1000


@dataclass
class _Series:
    last_step: int = -1
    seen: int = 0
    taken: int = 0


class Thinner:
    """Takes the first 1000 points of each series, then every second of the next 2000, and so on.

    The number of points grows logarithmically with the length of a run: about 10,000 for 10^6 steps.
    """

    def __init__(self) -> None:
        self._series: dict[str, _Series] = {}

    def take(self, point: Point) -> Point:
        """Return a point with the selected finite values of new steps of their series."""
        values = {
            name: value
            for name, value in point.values.items()
            if math.isfinite(value) and self._takes(name, point.step)
        }
        return point._replace(values=values)

    def _takes(self, name: str, step: int) -> bool:
        series = self._series.setdefault(name, _Series())
        if step <= series.last_step:  # repeated, but trackers cannot replace a value
            return False
        series.last_step = step
        series.seen += 1
        if (series.seen - 1) % 2 ** (series.taken // POINTS_PER_STRIDE):
            return False
        series.taken += 1
        return True
