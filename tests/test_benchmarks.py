"""Statistics that the benchmarks report."""

import math
from math import comb

import pytest

from benchmarks.steps import median_interval


@pytest.mark.parametrize("count", range(6, 61))
def test_median_interval_is_the_narrowest_with_enough_coverage(count: int) -> None:
    low, high = median_interval([float(value) for value in range(count, 0, -1)])
    below = count - round(high)  # values left out on each side
    assert low == below + 1

    def coverage(left_out: int) -> float:
        """Return the probability that the median lies between the remaining values."""
        inside = sum(comb(count, n) for n in range(left_out + 1, count - left_out))
        return math.ldexp(inside, -count)

    assert coverage(below) >= 0.95
    assert coverage(below + 1) < 0.95


def test_median_interval_of_few_values_spans_all_of_them() -> None:
    assert median_interval([2.0, 1.0, 3.0]) == (1.0, 3.0)
