"""Statistics over seeds: spread, paired differences with intervals, and verdicts.

Pure Python and deterministic. The intervals cover only what the seed changes (initial weights, views, order of the
images): the images are the same for all seeds.
"""

import math
import random
from collections import Counter
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import combinations_with_replacement
from statistics import fmean, stdev

from service.wire.experiments import DifferenceView, SummaryView, Verdict

LEVEL = 0.95
POWER = 0.8
"""Share of experiments in which a difference of the size `detectable_difference` is found."""
FEWEST_PAIRS = 3
"""Fewest pairs for a verdict. Two pairs also have an interval, but it is 18 times as wide as their standard deviation."""
RESAMPLES = 2000
"""Number of random resamples for more than `MOST_ENUMERATED` pairs."""
MOST_ENUMERATED = 7
"""Up to this number of pairs, all resamples are enumerated, without randomness."""
_TAIL = (1 - LEVEL) / 2

Interval = tuple[float, float]


def summarize(values: Sequence[float]) -> SummaryView | None:
    """Return mean and spread of values; None without values."""
    if not values:
        return None
    std = stdev(values) if len(values) > 1 else None
    return SummaryView(n=len(values), mean=fmean(values), std=std, min=min(values), max=max(values))


def paired_difference(
    values: dict[int, float], baseline: dict[int, float], resolution: float | None = None
) -> DifferenceView | None:
    """Return the differences of values from the baseline's with the same seed; None without a pair.

    Args:
        values: values by seed; seeds without a value of the baseline are left out.
        baseline: values of the baseline by seed.
        resolution: the smallest step of the metric, if known.
    """
    # Sort, so that neither rounding nor the resamples depend on the order of the seeds.
    differences = sorted(
        value - baseline[seed] for seed, value in values.items() if seed in baseline
    )
    summary = summarize(differences)
    if summary is None:
        return None
    std = _std(summary, resolution)
    return DifferenceView(
        **dict(summary),
        t_interval=_t_interval(summary, std),
        bootstrap_interval=bootstrap_interval(differences),
        detectable=None if std is None else std * detectable_difference(summary.n),
    )


def detectable_difference(pairs: int) -> float:
    """Return the smallest true difference that is found with a probability of `POWER`, in standard deviations.

    Of the paired difference, at least two pairs. Approximates the noncentral t distribution (Julious, "Sample sizes for clinical
    trials", 2009, eq. 3.8): exact to a few percent.
    """
    df = pairs - 1
    return (t_quantile(df) + t_quantile(df, 2 * POWER - 1)) / math.sqrt(pairs)


def judge(
    difference: DifferenceView | None,
    *,
    larger_is_better: bool,
    resolution: float | None,
    has_collapsed: bool = False,
) -> Verdict:
    """Judge a difference by its t interval.

    Args:
        resolution: the smallest step of the metric, if known. A difference of at most one step does not count.
        has_collapsed: whether a seed of the variant has collapsed or diverged: it is then never better.
    """
    if difference is None or difference.n < FEWEST_PAIRS or difference.t_interval is None:
        return "too_few_seeds"
    low, high = difference.t_interval
    if low <= 0 <= high or is_within(difference.mean, resolution):
        return "no_difference"
    if (difference.mean > 0) != larger_is_better:
        return "worse"
    return "unstable" if has_collapsed else "better"


def is_within(difference: float, resolution: float | None) -> bool:
    """Whether a difference is at most one step of the metric, up to rounding."""
    return resolution is not None and abs(difference) <= resolution * (1 + 1e-9)


def _std(summary: SummaryView, resolution: float | None) -> float | None:
    """Return the standard deviation of paired differences; None for one pair.

    Rounding to steps alone gives the difference of two values a variance of step² / 6. The variance is at least that,
    as equal differences on few images do not show a smaller one.
    """
    return None if summary.std is None else max(summary.std, (resolution or 0.0) / math.sqrt(6))


def _t_interval(summary: SummaryView, std: float | None) -> Interval | None:
    """Return Student's interval of the mean, which is exact for normally distributed differences."""
    if std is None:
        return None
    margin = t_quantile(summary.n - 1) * std / math.sqrt(summary.n)
    return summary.mean - margin, summary.mean + margin


def bootstrap_interval(values: Sequence[float]) -> Interval | None:
    """Return the percentile bootstrap interval of the mean; None for one value."""
    n = len(values)
    if n < 2:
        return None
    value = values.__getitem__  # with `sum`, as `fmean` takes ten times as long
    means = sorted((sum(map(value, chosen)) / n, weight) for chosen, weight in _resamples(n))
    return _quantile(means), _quantile(means[::-1])


def _quantile(means: Sequence[tuple[float, float]]) -> float:
    """Return the first mean at which the cumulated share of the resamples exceeds the tail."""
    covered = 0.0
    for mean, weight in means:
        covered += weight
        if covered >= _TAIL:
            return mean
    return means[-1][0]


# The resamples of a hundred seeds take 2 MB.
@lru_cache(maxsize=8)
def _resamples(n: int) -> Sequence[tuple[Sequence[int], float]]:
    """Return resamples of n positions, with their probabilities."""
    if n > MOST_ENUMERATED:
        stream = random.Random(n)
        return [(stream.choices(range(n), k=n), 1 / RESAMPLES) for _ in range(RESAMPLES)]
    resamples = []
    for chosen in combinations_with_replacement(range(n), n):
        orders = math.factorial(n)
        for repeated in Counter(chosen).values():
            orders //= math.factorial(repeated)
        resamples.append((chosen, orders / n**n))
    return resamples


@cache
def t_quantile(df: int, level: float = LEVEL) -> float:
    """Return the two-sided quantile of Student's t with `df` degrees of freedom for a probability up to `LEVEL`."""
    low, high = 0.0, 13.0  # 12.7 for one degree of freedom
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _probability_within(middle, df) < level else (low, middle)
    return high


def _probability_within(t: float, df: int) -> float:
    """Return the probability of |T| < t (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan2(t, math.sqrt(df))
    cosine, is_odd = math.cos(angle), df % 2
    term, total = (cosine if is_odd else 1.0), 0.0
    for power in range(is_odd, df - 1, 2):
        total += term
        term *= cosine**2 * (power + 1) / (power + 2)
    within = math.sin(angle) * total
    return 2 / math.pi * (angle + within) if is_odd else within
