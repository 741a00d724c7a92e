"""Advice on what a spec leaves open, by the facts about the images and the speed of the machine."""

from typing import Any

import pytest

from dasl_core.spec import (
    Advice,
    DatasetFacts,
    JobSpec,
    ResolvedJobSpec,
    advise,
    estimate,
    resolve,
    seconds_on_cores,
)
from dasl_core.spec.advice import LONGEST_SECONDS, Settings, apply

HOLDOUT = "evaluate.holdout.fraction"


def advice(
    spec: dict[str, Any] | None = None, cores: int | None = None, **facts: Any
) -> dict[str, Advice]:
    """Return the advice by field; the time is known for a number of cores, if one is given."""
    known = DatasetFacts(**{"num_images": 1000, "num_classes": None, "median_size": 64, **facts})

    def seconds(resolved: ResolvedJobSpec) -> tuple[float, float] | None:
        return seconds_on_cores(estimate(resolved, known), resolved, cores) if cores else None

    parsed = JobSpec.model_validate({"dataset": "images", **(spec or {})})
    found = advise(parsed, known, lambda other: resolve(other, known), seconds)
    for each in found:
        parsed = JobSpec.model_validate(apply(parsed.model_dump(exclude_unset=True), each.settings))
    if cores and "train.epochs" in {each.field for each in found}:
        bounds = seconds(resolve(parsed, known))
        assert bounds is not None
        assert bounds[1] <= LONGEST_SECONDS or parsed.train.epochs == 1
    return {each.field: each for each in found}


def settings(*arguments: Any, **facts: Any) -> Settings:
    """Return the advised settings."""
    return {
        field: value
        for each in advice(*arguments, **facts).values()
        for field, value in each.settings.items()
    }


def test_medical_images_are_not_mirrored_unless_the_spec_says_so() -> None:
    assert settings(has_dicom=True) == {"augment.flip": 0.0}
    assert "DICOM" in advice(has_dicom=True)["augment.flip"].reason
    assert settings({"augment": {"flip": 0.5}}, has_dicom=True) == {}
    assert settings() == {}


@pytest.mark.parametrize(
    ("images", "expected"),
    [(99, {}), (100, {HOLDOUT: 0.3}), (150, {HOLDOUT: 0.2}), (294, {HOLDOUT: 0.11})],
)
def test_enough_images_are_held_out_to_decide(images: int, expected: Settings) -> None:
    assert settings(num_images=images, num_classes=10) == expected
    assert HOLDOUT in advice(num_images=images)
    assert HOLDOUT not in advice(num_images=295)


@pytest.mark.parametrize(
    "spec",
    [
        {"evaluate": {"holdout": None, "knn": None, "retrieval": []}},
        {"evaluate": {"holdout": {"fraction": 0.05}}},
        {"evaluate": {"dataset": "others"}},
        # 70 training images would not fill a batch.
        {"train": {"batch_size": 80}},
    ],
)
def test_fraction_is_not_advised_where_the_spec_decides(spec: dict[str, Any]) -> None:
    assert HOLDOUT not in advice(spec, num_images=100)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        # A trial, without a verdict.
        ({"num_images": 60, "median_size": 225}, {"backbone.image_size": 96}),
        # What ends in time stays, then pixels go before epochs.
        ({"num_images": 300, "median_size": 32}, {"train.epochs": 11}),
        ({"num_images": 300, "median_size": 225}, {"backbone.image_size": 96, "train.epochs": 21}),
        # Fewer than ten epochs of the default network show nothing.
        (
            {"num_images": 2000, "median_size": 32},
            {"backbone.name": "test_resnet", "train.epochs": 15},
        ),
        (
            {"num_images": 2000, "median_size": 300},
            {"backbone.image_size": 96, "backbone.name": "test_resnet", "train.epochs": 27},
        ),
        (
            {"num_images": 2_000_000, "median_size": 300},
            {"backbone.image_size": 96, "backbone.name": "test_resnet", "train.epochs": 1},
        ),
    ],
)
def test_first_look_ends_within_ten_minutes(facts: dict[str, Any], expected: Settings) -> None:
    assert settings(cores=2, **facts) == expected
    assert settings(**facts) == {}, "nothing is known about the time"
    assert settings(cores=10**7, **facts) == {}


def test_first_look_takes_nothing_that_is_not_cheaper() -> None:
    """Measured speeds of an earlier job may be better than those computed for other settings, or tell of no time at all."""
    facts = DatasetFacts(num_images=1000, num_classes=None, median_size=300)

    def found(smaller: tuple[float, float]) -> list[Settings]:
        def seconds(resolved: ResolvedJobSpec) -> tuple[float, float]:
            return (600.0, 900.0) if resolved.backbone.image_size == 224 else smaller

        spec = JobSpec.model_validate({"dataset": "images"})
        return [each.settings for each in advise(spec, facts, lambda s: resolve(s, facts), seconds)]

    assert found((300.0, 2000.0)) == [{"train.epochs": 64}]
    assert found((15.0, 60.0)) == [{"backbone.image_size": 160}]


def test_first_look_says_what_more_brings() -> None:
    found = advice(cores=2, num_images=300, median_size=225)["train.epochs"].reason
    assert found == (
        "resnet18 with 224 px for 54 epochs takes 32 to 126 minutes here, and learns more. "
        "A first look, resnet18 with 96 px for 21 epochs, takes 2 to 10 minutes."
    )


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"backbone": {"name": "resnet50"}, "train": {"epochs": 500}}, {}),
        ({"train": {"epochs": 20}}, {"backbone.image_size": 96}),
        (
            {"backbone": {"image_size": 224}, "train": {"epochs": 20}},
            {"backbone.name": "test_resnet"},
        ),
        ({"backbone": {"name": "resnet18", "image_size": 224}}, {"train.epochs": 3}),
        # Weights have a size of their own.
        ({"backbone": {"pretrained": "file:///weights"}}, {"train.epochs": 3}),
    ],
)
def test_first_look_keeps_what_the_spec_sets(spec: dict[str, Any], expected: Settings) -> None:
    assert settings(spec, cores=2, num_images=300, median_size=300) == expected
