"""Recipes: `authors` has the values of tests/fixtures/authors_settings.yaml, `small` is the default."""

from typing import Any

import pytest

from dasl_core.spec import METHODS, DatasetFacts, JobSpec, ResolvedJobSpec, SpecError, resolve
from dasl_core.spec.base import SpecModel
from dasl_core.spec.recipes import (
    CONTINUE,
    SMALL,
    AtMostAllEpochs,
    ByBatch,
    ByEpochs,
    ByFamily,
    ByFeatures,
    ByImageSize,
    ByOptimizer,
    FallsAfterShares,
    JobFacts,
    Settings,
    ShareOfEpochs,
    TeacherMomentum,
    value_for,
)
from tools.authors_settings import AUTHORS, DATASETS, setting_of, setup_of

FACTS = DatasetFacts(num_images=1000, num_classes=10, median_size=72)
SETUPS = [(method, setup) for method, authors in AUTHORS.items() for setup in authors.setups]


def resolved(**parts: Any) -> ResolvedJobSpec:
    return resolve(JobSpec.model_validate({"dataset": "x"} | parts), FACTS)


@pytest.mark.parametrize(("method", "setup"), SETUPS)
def test_authors_recipe_has_the_values_of_the_authors(method: str, setup: str) -> None:
    authors = AUTHORS[method]
    spec = setup_of(method, setup, "authors")
    given = resolve(spec, DATASETS[authors.setups[setup]["dataset"]])
    assert given.recipe == "authors"
    values = {name: setting_of(given, name) for name in authors.settings}
    assert values == {
        name: pytest.approx(setting.of(setup), rel=1e-12)
        if isinstance(setting.of(setup), float)
        else setting.of(setup)
        for name, setting in authors.settings.items()
    }


def test_authors_recipe_of_a_method_has_its_sources() -> None:
    known = {name: method.authors for name, method in METHODS.items() if method.authors is not None}
    assert AUTHORS.keys() == known.keys()
    for name, authors in known.items():
        assert authors.settings.keys() <= AUTHORS[name].settings.keys(), name


def fields_with_auto(model: type[SpecModel], prefix: str) -> set[str]:
    return {prefix + name for name, field in model.model_fields.items() if field.default == "auto"}


TABLES: list[tuple[tuple[str, ...], str, Settings]] = [
    *(((name,), "small", METHODS[name].recipe.settings) for name in METHODS),
    *(
        ((name,), "authors", authors.settings)
        for name in METHODS
        if (authors := METHODS[name].authors) is not None
    ),
    (tuple(METHODS), "all", {**SMALL, **CONTINUE}),
]


@pytest.mark.parametrize(("methods", "recipe", "settings"), TABLES)
def test_recipe_sets_only_fields_that_can_be_auto(
    methods: tuple[str, ...], recipe: str, settings: Settings
) -> None:
    spec = JobSpec(dataset="x")
    fields = set().union(*(fields_with_auto(METHODS[name], "method.") for name in methods))
    for part in ("backbone", "augment", "train"):
        fields |= fields_with_auto(type(getattr(spec, part)), f"{part}.")
    fields |= fields_with_auto(type(spec.train.optimizer), "train.optimizer.")
    assert settings.keys() <= fields


JOB = JobFacts(
    family="resnet",
    features=2048,
    epochs=100,
    batch=256,
    images=25_600,
    optimizer="sgd",
    has_small_images=False,
)


@pytest.mark.parametrize(
    ("value", "job", "expected"),
    [
        (0.5, JOB, 0.5),
        (ByFamily(vit=1, other=2), JOB, 2),
        (ByFamily(vit=1, other=2), JOB._replace(family="vit"), 1),
        (ByImageSize(small=1, large=2), JOB._replace(has_small_images=True), 1),
        (ByEpochs({100: 1, 300: 2}), JOB, 1),
        (ByEpochs({100: 1, 300: 2}), JOB._replace(epochs=200), 2),
        (ByEpochs({100: 1, 300: 2}), JOB._replace(epochs=170), 1),
        (ByEpochs({100: 1, 300: 2}), JOB._replace(epochs=1), 1),
        (ByFamily(vit=0, other=ByEpochs({10: 3})), JOB, 3),
        (ByBatch({256: 1, 4096: 2}), JOB, 1),
        (ByBatch({256: 1, 4096: 2}), JOB._replace(batch=1100), 2),
        (ByFeatures({384: 1, 768: 2}), JOB, 2),
        (ByFeatures({384: 1, 768: 2}), JOB._replace(features=192), 1),
        (ByOptimizer({"sgd": 1, "adamw": 2}), JOB, 1),
        (ByOptimizer({"adamw": 2}), JOB, "auto"),
        (TeacherMomentum(most=0.999), JOB, 0.996),  # 10,000 steps
        (TeacherMomentum(most=0.999), JOB._replace(epochs=1000), 0.999),
        (TeacherMomentum(most=0.999), JOB._replace(images=100), 0.97),
        (AtMostAllEpochs(40), JOB, 40),
        (FallsAfterShares((0.25,), 0.1), JOB, {"epochs": (25.0,), "factor": 0.1}),
        (AtMostAllEpochs(40), JOB._replace(epochs=7), 7),
        (ShareOfEpochs(0.2), JOB, 20),
        (ShareOfEpochs(0.1, whole=True), JOB._replace(epochs=11), 2),
    ],
)
def test_value_of_a_recipe_follows_the_job(value: Any, job: JobFacts, expected: Any) -> None:
    assert value_for(value, job) == expected


def test_auto_recipe_is_small_without_weights_and_for_supervised_methods() -> None:
    assert resolved().recipe == "small"
    assert resolved() == resolved(recipe="small")
    weights = {"name": "resnet18", "pretrained": "/weights"}
    supervised = resolved(method={"name": "npair"}, backbone=weights)
    assert supervised.recipe == "small"


def test_start_from_weights_changes_them_slowly() -> None:
    weights = {"name": "resnet18", "pretrained": "/weights"}
    spec = resolved(method={"name": "byol"}, backbone=weights, train={"epochs": 50})
    small = resolved(
        method={"name": "byol"}, backbone=weights, recipe="small", train={"epochs": 50}
    )
    assert spec.recipe == "continue"
    optimizer = spec.train.optimizer
    assert (optimizer.name, optimizer.layer_decay, optimizer.weight_decay_end) == (
        "adamw",
        0.75,
        0.01,
    )
    assert optimizer.lr < small.train.optimizer.lr
    assert optimizer.head_lr * optimizer.base_lr == 5e-4
    assert (spec.train.warmup_epochs, spec.train.head_only_epochs) == (10, 5)
    assert 0.97 <= setting_of(spec, "method.teacher_momentum") < 0.999
    given = {"name": "byol", "teacher_momentum": 0.5}
    kept = resolved(method=given, backbone=weights, train={"optimizer": {"layer_decay": 1.0}})
    assert kept.train.optimizer.layer_decay == 1.0
    assert setting_of(kept, "method.teacher_momentum") == 0.5
    sgd = resolved(backbone=weights, train={"optimizer": {"name": "sgd"}}).train.optimizer
    assert (sgd.base_lr, sgd.head_lr, sgd.weight_decay) == (0.012, 10, 5e-4)
    shortest = resolved(backbone=weights, train={"epochs": 1})
    assert shortest.train.head_only_epochs == 0


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"recipe": "continue"}, r"recipe: is for a start from weights"),
        (
            {"recipe": "authors", "backbone": {"name": "vit_tiny_patch16_224"}},
            r"recipe: is not known: no settings of the authors of simclr for backbones such as vit_tiny",
        ),
        (
            {"recipe": "authors", "method": {"name": "margin_softmax"}},
            r"recipe: is not known: no settings of the authors of margin_softmax were found",
        ),
        (
            {"recipe": "authors", "method": {"name": "npair"}},
            r"recipe: is for a start from weights",
        ),
    ],
)
def test_unknown_recipe_is_refused(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        resolved(**parts)


def test_problem_of_what_a_recipe_sets_names_the_recipe() -> None:
    with pytest.raises(SpecError) as caught:
        resolved(
            recipe="authors",
            method={"name": "moco_v3", "initial_weights": "xavier"},
            backbone={"name": "vit_tiny_patch16_224", "pretrained": "/weights.pth"},
        )
    given = {problem.field: problem.given for problem in caught.value.problems}
    assert given["method.positions"] == "'sincos' by recipe: authors"
    assert given["method.initial_weights"] == "'xavier'"


def test_authors_recipe_keeps_what_the_spec_sets_and_fits_short_runs() -> None:
    spec = resolved(
        recipe="authors",
        method={"name": "simclr", "temperature": 0.3},
        augment={"jitter": 0.1},
        train={"epochs": 5, "optimizer": {"name": "sgd"}},
    )
    assert setting_of(spec, "method.temperature") == 0.3
    assert (spec.augment.jitter, spec.augment.interpolation) == (0.1, "bicubic")
    assert (spec.train.optimizer.name, spec.train.warmup_epochs) == ("sgd", 5)
    # Rates and decays of LARS mean nothing to another optimizer.
    assert (spec.train.optimizer.base_lr, spec.train.optimizer.weight_decay) == (0.12, 5e-4)
