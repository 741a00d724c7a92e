"""Statistics that the benchmarks report."""

import math
import random
from math import comb

import pytest

from benchmarks.parity.equivalence import compare, seeds_needed
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


def test_equivalence_follows_welchs_interval() -> None:
    # Student's sleep data: Welch's 90 % interval is 1.58 +- 1.4734 (17.776 degrees of freedom).
    first = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    second = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    found = compare(second, first, 4.0)
    assert found == pytest.approx((1.58, 0.1066, 3.0534, "equivalent"), abs=1e-3)
    # Each side must reject by itself: the verdict turns where the margin passes the farther end.
    assert compare(second, first, found.high + 1e-9).verdict == "equivalent"
    assert compare(second, first, found.high - 1e-9).verdict == "undecided"
    assert compare(second, first, found.low + 1e-9).verdict == "undecided"
    assert compare(first, second, found.low - 1e-9).verdict == "different"
    assert compare(first[:1], second, 100.0).verdict == "undecided"  # no deviation of one run


def test_seeds_for_equivalence_have_the_power_that_they_promise() -> None:
    seeds, generator = seeds_needed(1.3, 2.0, 15), random.Random(0)

    def power(count: int) -> float:
        """Return how often runs with equal means are found equivalent."""
        draws = [[generator.gauss(70, 1.3) for _ in range(count)] for _ in range(1000)]
        verdicts = [
            compare(a, b, 2.0).verdict for a, b in zip(draws[::2], draws[1::2], strict=True)
        ]
        return verdicts.count("equivalent") / len(verdicts)

    assert power(seeds) >= 0.8
    assert power(seeds - 2) < 0.8
    assert seeds_needed(5.0, 2.0, 15) == 15
