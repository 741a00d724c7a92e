"""Two one-sided tests: is the difference of two means smaller than a margin?"""

import math
import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple

from scipy import stats

LEVEL = 0.05  # of each one-sided test, so that the interval holds the difference with 90 %
POWER = 0.8


class Comparison(NamedTuple):
    """A difference of means, its 90 % interval, and what follows from it."""

    difference: float
    low: float
    high: float
    verdict: Literal["equivalent", "different", "undecided"]


def compare(ours: Sequence[float], theirs: Sequence[float], margin: float) -> Comparison:
    """Compare independent runs by Welch's interval for the difference of their means, ours minus theirs.

    Both one-sided tests reject, each at 5 %, if the 90 % interval lies within the margin: "equivalent". If
    it lies beyond the margin on one side: "different". Otherwise "undecided", also with fewer than two runs.
    """
    difference = statistics.fmean(ours) - statistics.fmean(theirs)
    if min(len(ours), len(theirs)) < 2:
        return Comparison(difference, -math.inf, math.inf, "undecided")
    shares = [statistics.variance(runs) / len(runs) for runs in (ours, theirs)]
    error = math.sqrt(sum(shares))
    reach = 0.0
    if error > 0:
        freedom = sum(shares) ** 2 / sum(
            share**2 / (len(runs) - 1) for share, runs in zip(shares, (ours, theirs), strict=True)
        )
        reach = error * float(stats.t.ppf(1 - LEVEL, freedom))
    low, high = difference - reach, difference + reach
    if -margin < low and high < margin:
        return Comparison(difference, low, high, "equivalent")
    beyond = low >= margin or high <= -margin
    return Comparison(difference, low, high, "different" if beyond else "undecided")


def seeds_needed(deviation: float, margin: float, most: int) -> int:
    """Return how many seeds each library needs for a power of 80 % if the means are equal; at most `most`.

    Args:
        deviation: standard deviation of a library's runs.
    """
    for seeds in range(2, most):
        freedom = 2 * seeds - 2
        # Both tests must reject, and each fails with half of what the power leaves.
        quantiles = stats.t.ppf([1 - LEVEL, (1 + POWER) / 2], freedom)
        if margin >= deviation * math.sqrt(2 / seeds) * float(quantiles.sum()):
            return seeds
    return most
