"""The weight of a regularizer over a training."""

import math

import pytest

from dasl_core.regularizers import weight_at
from dasl_core.regularizers.schedule import Schedule


@pytest.mark.parametrize(
    ("schedule", "weights"),
    [
        ("constant", [2, 2, 2, 2]),
        ("linear", [0, 0.5, 1, 2]),
        ("cosine", [0, 1 - math.sqrt(0.5), 1, 2]),
    ],
)
def test_weight_follows_its_schedule(schedule: Schedule, weights: list[float]) -> None:
    found = [weight_at(2.0, schedule, progress) for progress in (0.0, 0.25, 0.5, 1.0)]
    assert found == pytest.approx(weights)


@pytest.mark.parametrize("progress", [-0.1, 1.01, float("nan")])
def test_invalid_arguments_are_named(progress: float) -> None:
    with pytest.raises(ValueError, match="progress must be a number from 0 to 1; given"):
        weight_at(1.0, "linear", progress)
    with pytest.raises(ValueError, match="schedule must be one of 'constant', 'linear', 'cosine'"):
        weight_at(1.0, "step", 0.5)  # type: ignore[arg-type]
    for weight in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="weight must be a finite number of at least 0; given"):
            weight_at(weight, "linear", 0.5)
