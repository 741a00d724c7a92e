"""The weight of a regularizer over a training."""

import math

import pytest

from dasl_core.regularizers import weight_at


def test_constant_schedule_is_the_weight() -> None:
    assert [weight_at(0.3, "constant", p) for p in (0.0, 0.37, 1.0)] == [0.3, 0.3, 0.3]


def test_linear_schedule_grows_evenly_from_zero() -> None:
    assert [weight_at(2.0, "linear", p) for p in (0.0, 0.25, 1.0)] == [0.0, 0.5, 2.0]


def test_cosine_schedule_is_half_a_cosine() -> None:
    assert weight_at(2.0, "cosine", 0.0) == 0.0
    assert weight_at(2.0, "cosine", 0.5) == pytest.approx(1.0)
    assert weight_at(2.0, "cosine", 1.0) == 2.0
    assert weight_at(2.0, "cosine", 0.25) == pytest.approx(1 - math.sqrt(0.5))


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_weight_zero_stays_zero(schedule: str) -> None:
    assert all(weight_at(0.0, schedule, p / 7) == 0.0 for p in range(8))  # type: ignore[arg-type]


@pytest.mark.parametrize("progress", [-0.1, 1.01, float("nan")])
def test_invalid_arguments_are_named(progress: float) -> None:
    with pytest.raises(ValueError, match="progress must be a number from 0 to 1; given"):
        weight_at(1.0, "linear", progress)
    with pytest.raises(ValueError, match="schedule must be one of 'constant', 'linear', 'cosine'"):
        weight_at(1.0, "step", 0.5)  # type: ignore[arg-type]
    for weight in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="weight must be a finite number of at least 0; given"):
            weight_at(weight, "linear", 0.5)
