"""Statistics over seeds: known values, invariances, and the share of intervals that cover the truth."""

import math
import random
from itertools import product
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from service.experiments.effects import effects, find_design
from service.experiments.statistics import (
    FEWEST_PAIRS,
    LEVEL,
    MOST_ENUMERATED,
    POWER,
    bootstrap_interval,
    detectable_difference,
    judge,
    paired_difference,
    summarize,
    t_quantile,
)
from service.wire.experiments import Verdict

WHICH_VIEWS = Path(__file__).parents[2] / "examples" / "which-views.yaml"
VALUES = st.floats(-1, 1)
PAIRS = st.lists(st.tuples(VALUES, VALUES), min_size=2, max_size=12)
UP_TO_ROUNDING = pytest.approx


def difference_of(pairs: list[tuple[float, float]]) -> list[float]:
    """Return mean, standard deviation and interval bounds of the differences of pairs, all known."""
    difference = paired_difference(
        {seed: value for seed, (value, _) in enumerate(pairs)},
        {seed: value for seed, (_, value) in enumerate(pairs)},
    )
    assert difference is not None
    assert difference.t_interval is not None
    assert difference.bootstrap_interval is not None
    assert difference.std is not None
    return [difference.mean, difference.std, *difference.t_interval, *difference.bootstrap_interval]


@pytest.mark.parametrize("df", [1, 2, 3, 4, 5, 10, 29, 30, 199])
def test_t_quantile_equals_scipys(df: int) -> None:
    assert t_quantile(df) == pytest.approx(stats.t.ppf(0.5 + LEVEL / 2, df), rel=1e-9)


def test_effects_and_their_intervals_are_those_of_least_squares() -> None:
    example = yaml.safe_load(WHICH_VIEWS.read_text(encoding="utf-8"))
    variants = example["variants"]
    design = find_design(example["spec"], variants, example["baseline"])
    values = np.random.default_rng(0).normal(size=8)
    matrix = np.array([[1] * 8, *design.values()]).T
    coefficients, [left], *_ = np.linalg.lstsq(matrix, values, rcond=None)
    half = stats.t.ppf(0.975, 3) * 2 * np.sqrt(left / 3 / 8)  # an effect is twice a coefficient
    expected = dict(zip(design, 2 * coefficients[1:], strict=True))
    found = effects(design, values.tolist(), None)
    assert [row[0] for row in found] == sorted(expected, key=lambda each: -abs(expected[each]))
    for change, effect, margin in found:
        assert (effect, margin) == pytest.approx((expected[change], half))
    assert (
        find_design(example["spec"], variants | {"jitter": {"augment": {"jitter": 0}}}, "default")
        == {}
    )
    assert (
        find_design({}, {"a": {}, "b": {"dar": {}}}, "a") == {}
    )  # nothing is left for an interval
    twice = {"a": {}, "b": {"name": "x"}, "c": {}, "d": {"name": "x"}}
    assert find_design({}, twice, "a") == {}, "the same job twice is no repetition"


@pytest.mark.parametrize("pairs", [3, 4, 5, 8, 20])
def test_detectable_difference_is_found_in_four_of_five_experiments(pairs: int) -> None:
    distribution = stats.nct(pairs - 1, detectable_difference(pairs) * math.sqrt(pairs))
    power = distribution.sf(stats.t.ppf(0.5 + LEVEL / 2, pairs - 1))
    assert power == pytest.approx(POWER, abs=0.04)


def test_t_interval_equals_scipys() -> None:
    values, baseline = [0.51, 0.55, 0.60, 0.52], [0.50, 0.52, 0.58, 0.53]
    expected = stats.ttest_rel(values, baseline).confidence_interval(LEVEL)
    _, _, *bounds = difference_of(list(zip(values, baseline, strict=True)))
    assert bounds[:2] == pytest.approx([expected.low, expected.high], rel=1e-9)


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_bootstrap_of_few_values_is_that_over_all_resamples(n: int) -> None:
    values = [0.1, 0.4, -0.2, 0.25, 0.3][:n]
    means = sorted(fmean(chosen) for chosen in product(values, repeat=n))
    tail = math.ceil(len(means) * (1 - LEVEL) / 2) - 1
    assert bootstrap_interval(sorted(values)) == pytest.approx((means[tail], means[-1 - tail]))


def test_bootstrap_of_three_values_is_their_range() -> None:
    """Its 27 resamples have tails of 1/27 = 3.7 %: there is no narrower interval of 95 %."""
    assert bootstrap_interval([-0.1, 0.2, 0.6]) == pytest.approx((-0.1, 0.6))


def test_bootstrap_of_many_values_is_close_to_scipys() -> None:
    stream = random.Random(5)
    values = [stream.gauss(0, 1) for _ in range(30)]
    expected = stats.bootstrap(
        [values], fmean, vectorized=False, n_resamples=5000, method="percentile", random_state=1
    )
    low, high = bootstrap_interval(sorted(values)) or (0, 0)
    assert low == pytest.approx(expected.confidence_interval.low, abs=0.05)
    assert high == pytest.approx(expected.confidence_interval.high, abs=0.05)


@given(pairs=PAIRS, shift=VALUES)
def test_shift_of_both_changes_nothing(pairs: list[tuple[float, float]], shift: float) -> None:
    moved = [(value + shift, baseline + shift) for value, baseline in pairs]
    assert difference_of(moved) == UP_TO_ROUNDING(difference_of(pairs), abs=1e-9)


@given(pairs=PAIRS, shift=VALUES)
def test_shift_of_the_variant_shifts_mean_and_intervals(
    pairs: list[tuple[float, float]], shift: float
) -> None:
    moved = difference_of([(value + shift, baseline) for value, baseline in pairs])
    mean, std, *bounds = difference_of(pairs)
    expected = [mean + shift, std, *(bound + shift for bound in bounds)]
    assert moved == UP_TO_ROUNDING(expected, abs=1e-9)


@given(pairs=PAIRS, data=st.data())
def test_order_of_the_seeds_changes_nothing(
    pairs: list[tuple[float, float]], data: st.DataObject
) -> None:
    assert difference_of(data.draw(st.permutations(pairs))) == difference_of(pairs)


@given(pairs=st.lists(st.tuples(VALUES, VALUES), min_size=2, max_size=MOST_ENUMERATED))
def test_exchange_of_variant_and_baseline_mirrors(pairs: list[tuple[float, float]]) -> None:
    mean, std, t_low, t_high, low, high = difference_of(pairs)
    mirrored = difference_of([(baseline, value) for value, baseline in pairs])
    assert mirrored == UP_TO_ROUNDING([-mean, std, -t_high, -t_low, -high, -low], abs=1e-9)


@given(pairs=PAIRS)
def test_bootstrap_interval_is_within_the_differences(pairs: list[tuple[float, float]]) -> None:
    differences = [value - baseline for value, baseline in pairs]
    *_, low, high = difference_of(pairs)
    assert min(differences) - 1e-12 <= low <= high <= max(differences) + 1e-12


def test_pairs_are_of_seeds_that_both_have() -> None:
    difference = paired_difference({0: 1.0, 1: 5.0, 3: 2.0}, {3: 1.5, 0: 0.0, 2: 9.0})
    assert difference is not None
    assert (difference.n, difference.min, difference.max) == (2, 0.5, 1.0)
    assert paired_difference({0: 1.0}, {1: 1.0}) is None
    single = paired_difference({0: 1.0}, {0: 0.5})
    assert single is not None
    assert (single.std, single.t_interval, single.bootstrap_interval) == (None, None, None)
    assert summarize([]) is None


def test_equal_differences_of_few_images_have_an_interval() -> None:
    """Of 40 images, three seeds easily agree to the image."""
    values, baseline = dict.fromkeys(range(3), 0.55), dict.fromkeys(range(3), 0.5)
    exact = paired_difference(values, baseline)
    assert exact is not None
    assert exact.t_interval == pytest.approx((0.05, 0.05))
    rounded = paired_difference(values, baseline, resolution=1 / 40)
    assert rounded is not None
    assert rounded.std == pytest.approx(0.0, abs=1e-12)
    margin = t_quantile(2) / 40 / math.sqrt(6) / math.sqrt(3)
    assert rounded.t_interval == pytest.approx((0.05 - margin, 0.05 + margin))


@pytest.mark.parametrize(
    ("differences", "larger_is_better", "resolution", "verdict"),
    [
        ([0.1, 0.11, 0.12], True, None, "better"),
        ([0.1, 0.11, 0.12], False, None, "worse"),
        ([-0.1, -0.11, -0.12], False, None, "better"),
        ([0.1, -0.11, 0.12], True, None, "no_difference"),
        ([0.1, 0.3, 0.02], True, None, "no_difference"),
        ([0.1, 0.1, 0.1], True, 0.1, "no_difference"),  # one image each
        ([0.2, 0.2, 0.2], True, 0.1, "better"),
        ([0.0, 0.0, 0.0], True, 0.1, "no_difference"),
        ([0.1, 0.11], True, None, "too_few_seeds"),
        ([0.1], True, None, "too_few_seeds"),
        ([], True, None, "too_few_seeds"),
    ],
)
def test_verdict_follows_the_t_interval_direction_and_resolution(
    differences: list[float], larger_is_better: bool, resolution: float | None, verdict: Verdict
) -> None:
    difference = paired_difference(
        dict(enumerate(differences)), dict.fromkeys(range(len(differences)), 0.0)
    )
    judged = judge(difference, larger_is_better=larger_is_better, resolution=resolution)
    assert judged == verdict


@pytest.mark.parametrize(("n", "bootstrap_covers"), [(FEWEST_PAIRS, 0.75), (5, 0.84), (10, 0.90)])
def test_t_interval_covers_as_promised_and_the_bootstrap_as_documented(
    n: int, bootstrap_covers: float
) -> None:
    """Of normally distributed differences with the mean 0. The standard error of a share is at most 0.015."""
    stream, trials = random.Random(n), 2000 if n <= MOST_ENUMERATED else 500
    covered = [0, 0]
    for _ in range(trials):
        values = sorted(stream.gauss(0, 1) for _ in range(n))
        difference = paired_difference(dict(enumerate(values)), dict.fromkeys(range(n), 0.0))
        assert difference is not None
        for kind, interval in enumerate((difference.t_interval, difference.bootstrap_interval)):
            assert interval is not None
            covered[kind] += interval[0] <= 0 <= interval[1]
    t, bootstrap = (count / trials for count in covered)
    assert t == pytest.approx(LEVEL, abs=0.02)
    assert bootstrap == pytest.approx(bootstrap_covers, abs=0.03)
