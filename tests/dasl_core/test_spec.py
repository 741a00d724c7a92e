"""Specs of jobs: invalid fields are named, and every "auto" is resolved to a value."""

import difflib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import timm
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from dasl_core.models.catalog import FAMILIES, describe
from dasl_core.spec import (
    BACKBONES,
    METHODS,
    REGULARIZERS,
    BackboneInfo,
    DatasetFacts,
    Estimate,
    FieldProblem,
    JobSpec,
    ResolvedJobSpec,
    SpecError,
    apply_overrides,
    estimate,
    field_problems,
    load_spec,
    resolve,
)
from dasl_core.spec.backbone import Backbone
from dasl_core.spec.backbones import TESTED
from dasl_core.spec.regularizers import SEC
from dasl_core.spec.regularizers.dar import choose_k
from dasl_core.spec.resolve.facts import training_classes, training_images
from dasl_core.spec.versions import current, load
from tests.support.training_world import TINY_BACKBONES

NAN = float("nan")
FACTS = DatasetFacts(num_images=1000, num_classes=10, median_size=72)


def problems_of(spec: Any) -> list[FieldProblem]:
    with pytest.raises(ValidationError) as raised:
        JobSpec.model_validate(spec)
    return field_problems(raised.value, JobSpec)


def spec_of(**parts: Any) -> JobSpec:
    return JobSpec.model_validate({"dataset": "pictures"} | parts)


# --- invalid specs

Bad = tuple[dict[str, Any], str, str, str]


def at(field: str, value: Any, expected: str, given: str | None = None) -> Bad:
    """A spec with one bad field, which is shown as `given`."""
    return nested(field, value), field, repr(value) if given is None else given, expected


def nested(field: str, value: Any) -> dict[str, Any]:
    first, _, rest = field.partition(".")
    return {first: nested(rest, value) if rest else value}


BAD: list[Bad] = [
    at("method.name", "simclrr", "simclr"),
    at("method.name", 5, "simclr"),
    at("method.temperature", 0, ">= 0.001"),
    at("method.temprature", 1, ""),
    at("method", "simclr", "a mapping"),
    at("metod", {}, ""),
    at("float", 1, ""),
    at("dataset", "", "at least 1"),
    at("dataset", "../x", "a name without slashes"),
    at("dataset", "~/birds", "register a folder first: dasl datasets add"),
    at("name", "a\nb", "a name without slashes, line breaks"),
    ({"tags": {"a\nb": "c"}}, "tags.a\\nb", "'a\\nb'", "a string without line breaks"),
    ({"k" * 100: 1}, "k" * 100, "1", ""),
    ({"train": {"k" * 101: 1}}, "train." + "k" * 97 + "...", "1", ""),
    (
        {"tags": {"\n" * 10**6: "c"}},
        "tags." + "\\n" * 48 + "\\...",
        repr("\n" * 100)[:77] + "...",
        "at most",
    ),
    at("name", "x" * 201, "at most 200 characters", repr("x" * 201)[:77] + "..."),
    at("augment.blur", [], "at least 1 entry"),
    at("backbone", "resnet18", "a mapping, such as {name: resnet18}"),
    at("train.optimizer", "adam", "a mapping, such as {name: adam}"),
    ({"dar": {"weight": 1, "share": 0.1}}, "dar.share", "0.1", "null, or dar.weight: auto"),
    (
        {"regularizers": {"koleo": {"weight": 1, "share": 2}}},
        "regularizers.koleo.share",
        "2.0",
        "null, or regularizers.koleo.weight: auto",
    ),
    at("sec.share", 0, "> 0"),
    at("dar.weight", True, "a number", "true"),
    at("train.epochs", True, "a whole number", "true"),
    at("augment.flip", False, "a number", "false"),
    ({"evaluate": {"retrieval": [1, True]}}, "evaluate.retrieval.1", "true", "a whole number"),
    at("resources.gpus_per_worker", True, "0 or 1", "true"),
    (
        {"dataset": "x", "evaluate": {"dataset": "x"}},
        "evaluate.dataset",
        "'x'",
        "another data set, or null to hold images out",
    ),
    (
        {"method": {"name": "vicreg", "invariance": 0, "variance": 0, "covariance": 0}},
        "method.invariance",
        "0.0",
        "one weight above 0",
    ),
    (
        {"method": {"name": "simclr", "temperature": 1e-30}},
        "method.temperature",
        "1e-30",
        "a number >= 0.001",
    ),
    at("train", "fast", "a mapping"),
    at("evaluate.holdout", 0, "a mapping, or null"),
    at("dar", "on", "a mapping, or null"),
    at("backbone.name", "resnet81", "'resnet50'"),
    at("backbone.image_size", 4, ">= 8, or 'auto'"),
    at("backbone.image_size", "big", "or 'auto'"),
    at("backbone.in_channels", 65, "a number <= 64, or 'auto'"),
    at(
        "backbone.window",
        [9, 9],
        "two numbers: low, then a larger high, or a mapping, or 'auto'",
        "[9.0, 9.0]",
    ),
    at("backbone.pretrained", True, "a string", "true"),
    at("backbone.stem", "tall", "'standard' or 'small', or 'auto'"),
    at("augment.crop_scale", [0.5, 0.2], "low <= high"),
    ({"augment": {"crop_scale": [NAN, 1]}}, "augment.crop_scale.0", "nan", "a finite number"),
    at("augment.blur", 1.5, "a number <= 1.0, or a list, or 'auto'"),
    (
        {"method": {"name": "dino", "local_scale": [0.4, 0.1]}},
        "method.local_scale",
        "[0.4, 0.1]",
        "low <= high",
    ),
    (
        {"train": {"compile": True, "checkpoint_activations": True}},
        "train.checkpoint_activations",
        "true",
        "train.compile: false",
    ),
    at("dar.weight", -1, ">= 0"),
    at("dar.labels", "colour", "'instance'"),
    at("sec.momentum", 0, "> 0"),
    at("train.epochs", 0, ">= 1"),
    at("train.epochs", 2.5, "whole number"),
    at("train.seed", 2**63, "<="),
    at("train.batch_size", NAN, "or 'auto'"),
    at("train.optimizer.lr", NAN, "finite number, or 'auto'"),
    at("train.optimizer.lr", 0, "> 0"),
    at("train.optimizer.lr", 1e300, "<= 10000"),
    at("train.optimizer.base_lr", 1e5, "<= 10000"),
    at("train.optimizer.weight_decay", 101, "100"),
    at("dar.weight", 1e7, "<= 1000000"),
    at("sec.weight", 1e39, "<= 1000000"),
    at("evaluate.knn.temperature", 1e-300, ">="),
    ({"train": {"epochs": 5, "warmup_epochs": 6}}, "train.warmup_epochs", "6.0", "at most 5"),
    at("resources.max_hours", 1e300, "<= 100000"),
    at("train.optimizer.name", "adagrad", "'adamw'"),
    (
        {"train": {"batch_size": 7}, "resources": {"workers": 2}},
        "train.batch_size",
        "7",
        "a multiple of 2, such as 8",
    ),
    ({"evaluate": {"retrieval": [1, 0]}}, "evaluate.retrieval.1", "0", ">= 1"),
    at("evaluate.holdout.fraction", 1, "< 1"),
    *(
        ({"evaluate": {"holdout": holdout}}, f"evaluate.holdout{field}", given, expected)
        for holdout, field, given, expected in (
            ({"by": "group"}, "", "'none'", "group: {folder: 1}"),
            ({"group": {"folder": 1}}, "", "'by: image'", "by: group"),
            ({"by": "group", "group": {}}, ".group", "'none'", "folder, column or pattern"),
            ({"by": "group", "group": {"folder": 0}}, ".group.folder", "0", ">= 1"),
            *(
                ({"by": "group", "group": {"pattern": bad}}, ".group.pattern", repr(bad), expected)
                for bad, expected in (
                    ("(a", "one group"),
                    ("a+", "one group"),
                    ("(a+)+", "a repeat inside"),
                    (r"([)\]]|b){2,}", "a repeat inside"),
                    ("(a+)(?#)+", "groups that begin with"),
                    ("(a*)b*c*d*", "at most 3 repeats"),
                    ("(" + "a?" * 21 + ")", "at most 3 repeats"),
                )
            ),
        )
    ),
    at("resources.workers", 0, ">= 1"),
    at("resources.gpus_per_worker", 2, "0 or 1"),
    at("tags.team", 5, "a string"),
    at("priority", "high", "whole number"),
]


@pytest.mark.parametrize(("parts", "field", "given_value", "expected"), BAD)
def test_bad_field_is_named_once_with_remedy(
    parts: dict[str, Any], field: str, given_value: str, expected: str
) -> None:
    (problem,) = problems_of({"dataset": "pictures"} | parts)
    assert problem.field == field
    assert problem.given == given_value
    assert expected in problem.expected
    assert bool(expected) == bool(problem.expected)
    assert problem.message
    assert str(problem).startswith(f"{field}: ")
    assert json.loads(json.dumps(problem.as_dict()))["field"] == field


def test_all_errors_are_reported_together() -> None:
    problems = problems_of({"train": {"epochs": 0, "seed": -1}, "nmae": "x"})
    assert {p.field for p in problems} == {"dataset", "train.epochs", "train.seed", "nmae"}
    assert len(problems) == 4
    said = [str(problem) for problem in problems]
    assert "dataset: missing required field" in said
    assert "train.epochs: is out of range (given 0; expected a number >= 1, or 'auto')" in said


@pytest.mark.parametrize("nonsense", [None, [], "text", 5])
def test_spec_that_is_not_a_mapping_is_refused(nonsense: Any) -> None:
    (problem,) = problems_of(nonsense)
    assert problem.field == "(the whole spec)"


def test_similar_names_are_suggested_and_long_values_cut() -> None:
    (problem,) = problems_of({"dataset": "x", "method": {"name": "simlcr"}})
    assert "did you mean 'simclr'?" in problem.message
    (problem,) = problems_of({"dataset": "x", "backbone": {"name": "vit_smal_patch16_224"}})
    assert "did you mean 'vit_small_patch16_224'?" in problem.message
    for spec, meant in (
        ({"trian": {}}, "train"),
        ({"train": {"optimizer": {"wieght_decay": 0}}}, "train.optimizer.weight_decay"),
        ({"method": {"temprature": 1}}, "method.temperature"),
        ({"evaluate": {"linear": {"epoch": 1}}}, "evaluate.linear.epochs"),
        ({"epoch": 1}, "train.epochs"),
        ({"train": {"epoch": 1}}, "train.epochs"),
        ({"train": {"lr": 1}}, "train.optimizer.lr"),
    ):
        (problem,) = problems_of({"dataset": "x"} | spec)
        assert problem.message == f"unknown key; did you mean {meant!r}?"
    (problem,) = problems_of({"dataset": "x", "entirely_else": 1})
    assert problem.message == "unknown key"
    (problem,) = problems_of({"dataset": "x", "backbone": {"name": "resnet" * 100_000}})
    assert len(problem.given) <= 80
    assert len(str(problem)) < 500


def test_suggestion_does_not_compare_huge_names(monkeypatch: pytest.MonkeyPatch) -> None:
    compare, compared = difflib.get_close_matches, []

    def counted(word: str, known: list[str], **options: Any) -> list[str]:
        compared.append(len(word))
        return compare(word, known, **options)

    monkeypatch.setattr(difflib, "get_close_matches", counted)
    endless = "x" * 100_000
    for spec in ({endless: 1}, {"method": {"name": endless}}, {"backbone": endless}):
        problems_of({"dataset": "x", **spec})
    # An unknown key is compared with its siblings, then with all fields.
    assert len(compared) == 4
    assert max(compared) <= 100


def unresolvable(spec: JobSpec, facts: DatasetFacts) -> list[FieldProblem]:
    with pytest.raises(SpecError) as raised:
        resolve(spec, facts)
    return raised.value.problems


def chosen(settings: str) -> tuple[JobSpec, DatasetFacts]:
    """Return the spec with `--set` of all these settings, and FACTS with those of them that are facts."""
    spec: dict[str, Any] = {"dataset": "pictures"}
    facts: dict[str, Any] = {}
    for setting in settings.split():
        name, _, value = setting.partition("=")
        if name in DatasetFacts.model_fields:
            facts[name] = yaml.safe_load(value)
        else:
            spec = apply_overrides(spec, [setting])
    return JobSpec.model_validate(spec), FACTS.model_copy(update=facts)


VIT = "vit_small_patch16_224"
HALF_OF_CLASSES = "evaluate.holdout.by=class evaluate.holdout.fraction=0.5"
TWO_CLASSES = "needs at least two classes; the data set has 2, 1 of them for training"
# Settings and facts, the refusal, and changes that allow them.
REFUSED: list[tuple[str, str, str]] = [
    # A tenth is held out.
    ("train.batch_size=901", "train.batch_size: .* 901; .* at most 900", "train.batch_size=900"),
    ("train.batch_size=1000", "train.batch_size: .* at most 900", "evaluate.dataset=other"),
    ("num_images=1", "dataset: has 1 image; at least 2 are needed", "num_images=2"),
    (
        "evaluate.holdout.fraction=0.5 num_images=2",
        "dataset: has 2 images, which leave 1 for training; at least 2 are needed .given 'pictures'",
        "num_images=4",
    ),
    *(
        (f"{name}={number}", f"{name}: .* leaves 900 .*given {number}", f"{name}=1")
        for name, number in (("resources.workers", 4096), ("train.micro_batches", 2000))
    ),
    (
        "train.batch_size=512 train.optimizer.base_lr=6000",
        "train.optimizer.base_lr: .*given 6000; expected at most 5000 with this batch",
        "train.optimizer.base_lr=5000",
    ),
    ("evaluate.gallery=gallery num_classes=null", "evaluate.gallery: ", "num_classes=10"),
    # Otherwise a valid training would fail after its last epoch.
    (
        "train.batch_size=8 resources.workers=4 evaluate.finetune.batch_size=3",
        "evaluate.finetune.batch_size: .* at least 4",
        "evaluate.finetune.batch_size=4",
    ),
    *(
        (
            f"backbone.name={name} backbone.image_size={size} backbone.stem={stem}",
            f"backbone.image_size: .* divisible by {patch} .* such as {such_as}",
            f"backbone.image_size={such_as}",
        )
        for name, size, stem, patch, such_as in (
            (VIT, 100, "auto", 16, 96),
            (VIT, 30, "auto", 8, 24),  # small stem: 8 x 8 patches
            ("vit_base_patch32_224", 16, "standard", 32, 32),
        )
    ),
    *(
        (
            f"evaluate.holdout.by=class evaluate.holdout.fraction={fraction} num_classes={classes}",
            "evaluate.holdout.by: ",
            "num_classes=10",
        )
        for classes, fraction in (("null", 0.5), (1, 0.5), (3, 0.1), (3, 0.9))
    ),
    (
        "evaluate.holdout.by=group evaluate.holdout.group.column=plate group_column=patient",
        "evaluate.holdout.group.column: .*'plate'.*'patient'",
        "group_column=plate",
    ),
    *(
        (f"{setting} {HALF_OF_CLASSES} num_classes=2", f".*: {TWO_CLASSES}", changes)
        for setting in ("method.name=proxy_anchor", "dar.labels=class", "train.samples_per_class=2")
        for changes in ("num_classes=10", "evaluate={}")
    ),
    *(
        (
            f"dar.estimator=full {dar} train.batch_size={batch} num_images=2000",
            f"dar.estimator: .* {2 * batch:,} embeddings .* at most {batch:,}",
            f"train.batch_size={batch // 2}",
        )
        for dar, batch in (
            ("dar.difference=signed", 1024),
            ("dar.difference=abs", 1024),
            ("dar.norm=l2 dar.difference=abs", 128),
        )
    ),
    (
        "dar={} train.batch_size=8192 num_images=20000",
        "dar.estimator: .* 16,384 embeddings .* at most 12,000",
        "dar.estimator=chain",
    ),
    ("dar.reduction=sum", "dar.reduction: has no effect with dar.share", "dar.weight=1"),
    *(
        (
            f"{setting} train.micro_batches=2 train.batch_size=8",
            f"{name}.weight: must be given with train.micro_batches > 1",
            f"{name}={{}} {name}.weight=0.2",
        )
        for name, setting in (
            ("dar", "dar.share=0.2"),
            ("sec", "sec={}"),
            ("regularizers.sigreg", "regularizers.sigreg={}"),
        )
    ),
    (
        "dar.labels=cluster train.epochs=1",
        "dar.clusters.every_epochs: .*the images would never be clustered",
        "train.epochs=2",
    ),
    *(
        (
            f"train.batch_size=4 train.micro_batches=4 {method}",
            "train.micro_batches: leaves one image .*expected at most 2",
            "train.batch_size=8 train.micro_batches=2",
        )
        for method in ("method.name=npair", "method.name=dino method.local_crops=1")
    ),
    (
        "train.samples_per_class=1000000 method.name=npair",
        r"train.samples_per_class: is more than the \d+ images",
        "train={}",
    ),
    (
        "method.name=triplet method.mining=all train.batch_size=2048 num_images=10000",
        "train.batch_size.*triplets.*expected at most 1,024",
        "method.mining=semihard",  # needs no list of triplets
    ),
    (
        "regularizers.koleo.weight=0.1 regularizers.koleo.labels=class num_classes=null",
        "regularizers.koleo.labels: needs at least two classes",
        "num_classes=10",
    ),
    (
        "regularizers.sigreg.weight=1 regularizers.sigreg.slices=4096 regularizers.visreg.weight=1 "
        "train.batch_size=4096 num_images=1000000",
        "regularizers.sigreg.slices: .*8,192.*at most 1,927",
        "regularizers={} regularizers.visreg.weight=1",
    ),
    (
        f"method.name=dino method.local_size=50 backbone.name={VIT} backbone.image_size=224",
        "method.local_size: .*divisible by 16.*given 50; expected such as 48",
        "method.local_size=48",
    ),
]


@pytest.mark.parametrize(("settings", "refusal", "changes"), REFUSED)
def test_what_cannot_run_on_a_data_set_is_refused(
    settings: str, refusal: str, changes: str
) -> None:
    (problem,) = unresolvable(*chosen(settings))
    assert re.match(refusal, str(problem))
    resolve(*chosen(f"{settings} {changes}"))


def test_explicit_holdout_of_no_images_is_refused() -> None:
    three = FACTS.model_copy(update={"num_images": 3})
    resolve(spec_of(), three)  # the default: the run itself reports it
    chosen = spec_of(evaluate={"holdout": {"fraction": 0.15}})
    (problem,) = unresolvable(chosen, three)
    assert problem.field == "evaluate.holdout.fraction"
    assert problem.message == "holds out none of the data set's 3 images"
    resolve(chosen, FACTS)
    resolve(spec_of(evaluate={"dataset": "other"}), three)


@given(images=st.integers(3, 10_000_000))
def test_advised_holdout_is_one_image(images: int) -> None:
    """The bound that was advised before held out none of six images."""
    facts = FACTS.model_copy(update={"num_images": images})
    none = spec_of(evaluate={"holdout": {"fraction": 0.45 / images}})  # never the default, 0.1
    (problem,) = unresolvable(none, facts)
    assert problem.field == "evaluate.holdout.fraction"
    fraction = float(problem.expected.split()[0])
    advised = spec_of(evaluate={"holdout": {"fraction": fraction}})
    assert training_images(advised, facts) == images - 1
    resolve(advised, facts)


@pytest.mark.parametrize("name", METHODS)
def test_embedding_is_evaluated_for_supervised_methods(name: str) -> None:
    supervised = METHODS[name].supervised
    parts = {"method": {"name": name}, "backbone": TINY_BACKBONES.get(name, {})}
    evaluated = resolve(spec_of(**parts), FACTS).evaluate.on
    assert evaluated == ("embedding" if supervised else "backbone")
    chosen = spec_of(**parts, evaluate={"on": "backbone"})
    assert resolve(chosen, FACTS).evaluate.on == "backbone"
    if not supervised:
        with pytest.raises(ValidationError, match=f"the embeddings of {name} only serve its loss"):
            spec_of(method={"name": name}, evaluate={"on": "embedding"})


def test_holdout_null_trains_on_all_images() -> None:
    spec = spec_of(evaluate={"holdout": None})
    assert training_images(spec, FACTS) == FACTS.num_images
    assert training_classes(spec, FACTS) == FACTS.num_classes
    resolved = resolve(spec, FACTS)
    assert resolved.evaluate.holdout is None
    assert load(resolved.model_dump(mode="json"), current()) == resolved
    resolve(spec_of(evaluate={"holdout": None, "dataset": "other", "linear": True}), FACTS)


def test_holdout_null_refuses_evaluations_that_would_not_run() -> None:
    wanted: dict[str, Any] = dict.fromkeys(("linear", "finetune", "clustering"), True)
    wanted |= {"knn": {"k": 5}, "retrieval": [1, 2], "gallery": "gallery"}
    problems = unresolvable(spec_of(evaluate={"holdout": None, **wanted}), FACTS)
    assert {problem.field for problem in problems} == {f"evaluate.{name}" for name in wanted}
    assert all("evaluate.holdout is null" in problem.message for problem in problems)
    resolve(spec_of(evaluate={"holdout": None, "knn": {"k": 20}, "retrieval": []}), FACTS)


def test_resolved_spec_of_few_images_is_valid_input() -> None:
    three = FACTS.model_copy(update={"num_images": 3})
    settled = resolve(spec_of(), three)
    again = JobSpec.model_validate_json(settled.model_dump_json())
    assert resolve(again, three) == settled


@pytest.mark.parametrize(
    ("train", "field", "expected"),
    [
        ({"batch_size": 4, "samples_per_class": 4}, "train.batch_size", "at least 8"),
        ({"batch_size": 8, "samples_per_class": 1}, "train.samples_per_class", "at least 2"),
    ],
)
@pytest.mark.parametrize("method", ["npair", "triplet", "multi_similarity"])
def test_batch_without_pairs_is_refused(
    method: str, train: dict[str, Any], field: str, expected: str
) -> None:
    (problem,) = unresolvable(spec_of(method={"name": method}, train=train), FACTS)
    assert (problem.field, problem.expected) == (field, expected)
    resolve(spec_of(method={"name": "proxy_anchor"}, train=train), FACTS)
    few = FACTS.model_copy(update={"num_classes": 5})  # a batch of 8 has two of some class
    resolve(spec_of(method={"name": method}, train=train | {"batch_size": 8}), few)


# --- "auto"

VITS = sorted(name for name, info in BACKBONES.items() if info.family == "vit")
RESNETS = sorted(name for name, info in BACKBONES.items() if info.family == "resnet")
AUTO = st.just("auto")


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """Valid specs that any data set of 200 images can run."""
    name = draw(st.sampled_from(VITS) | st.sampled_from(RESNETS))
    patch, smallest = BACKBONES[name].patch_size or 1, BACKBONES[name].smallest_size
    sizes = [
        size
        for size in (32, 64, 112, 224, 448, patch * 8)
        if size % (8 * patch) == 0 and size >= smallest
    ]
    workers = draw(st.integers(1, 8))
    epochs = draw(st.integers(1, 2000))
    batch = draw(AUTO | st.integers(1, 20).map(lambda n: max(2, n * workers)))
    if isinstance(batch, int) and batch % workers:
        batch += workers - batch % workers
    return {
        "dataset": "pictures",
        "method": {"hidden_dim": draw(AUTO | st.integers(1, 4096))},
        "backbone": {
            "name": name,
            "image_size": draw(AUTO | st.sampled_from(sizes)),
            "stem": draw(AUTO | st.sampled_from(["small", "standard"])),
            "in_channels": draw(st.sampled_from([1, 3])),
        },
        "augment": {"blur": draw(AUTO | st.floats(0, 1))},
        "dar": draw(st.none() | st.fixed_dictionaries({"weight": st.floats(0, 10)})),
        "sec": draw(st.none() | st.fixed_dictionaries({"weight": st.floats(0, 10)})),
        "train": {
            "epochs": epochs,
            "batch_size": batch,
            "precision": draw(AUTO | st.sampled_from(["fp32", "bf16", "fp64"])),
            "optimizer": {
                "name": draw(AUTO | st.sampled_from(["adamw", "sgd", "lars"])),
                "lr": draw(AUTO | st.floats(1e-9, 1e4) | st.integers(1, 5)),
                "weight_decay": draw(AUTO | st.floats(0, 1) | st.just(0)),
            },
            "warmup_epochs": draw(AUTO | st.floats(0, epochs) | st.integers(0, min(10, epochs))),
            "checkpoint_every_epochs": draw(AUTO | st.integers(1, 100)),
        },
        "evaluate": {"every_epochs": draw(AUTO | st.integers(1, 100))},
        "resources": {"workers": workers, "gpus_per_worker": draw(st.sampled_from([0, 1]))},
    }


FACTS_OF_ANY_SET = st.builds(
    DatasetFacts,
    num_images=st.integers(200, 10**7),
    num_classes=st.none() | st.integers(2, 1000),
    median_size=st.integers(1, 5000),
)


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for inner in value.values() for leaf in leaves(inner)]
    if isinstance(value, list | tuple):
        return [leaf for inner in value for leaf in leaves(inner)]
    return [value]


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(specs(), FACTS_OF_ANY_SET)
def test_resolve_replaces_auto_and_is_idempotent(raw: dict[str, Any], facts: DatasetFacts) -> None:
    spec = JobSpec.model_validate(raw)
    resolved = resolve(spec, facts)
    assert "auto" not in leaves(resolved.model_dump(exclude={"resources"}))
    assert resolve(resolved, facts) == resolved
    assert ResolvedJobSpec.model_validate_json(resolved.model_dump_json()) == resolved
    assert ResolvedJobSpec.model_validate(resolved.model_dump(mode="json")) == resolved
    batch = resolved.train.batch_size
    assert isinstance(batch, int)
    assert batch % resolved.resources.workers == 0
    assert 2 <= batch <= facts.num_images
    assert isinstance(resolved.train.optimizer.lr, float)
    assert isinstance(resolved.train.optimizer.weight_decay, float)
    assert isinstance(resolved.train.warmup_epochs, float)
    costs = estimate(resolved, facts)
    assert costs.train_images + costs.held_out_images == facts.num_images
    assert costs.steps_per_epoch >= 1
    assert costs.total_steps == costs.steps_per_epoch * resolved.train.epochs
    # Values set by the user are never changed.
    for part, fields in raw.items():
        if isinstance(fields, dict):
            for name, value in fields.items():
                if value != "auto" and not isinstance(value, dict):
                    assert getattr(getattr(resolved, part), name) == value


@settings(deadline=None, max_examples=50)
@given(
    st.fixed_dictionaries(
        {
            "method": st.fixed_dictionaries({"name": st.sampled_from(sorted(METHODS))}),
            "recipe": st.sampled_from(["small", "authors"]),
            "train": st.fixed_dictionaries(
                {
                    "epochs": st.sampled_from([1, 7, 100_000]),
                    "micro_batches": st.sampled_from([1, 2, 10**9]),
                    "samples_per_class": st.sampled_from(["auto", None, 3]),
                }
            ),
            "dar": st.none() | st.just({"labels": "cluster"}),
            "resources": st.fixed_dictionaries({"workers": st.sampled_from([1, 4, 4096])}),
        }
    ),
    st.builds(
        DatasetFacts,
        num_images=st.integers(0, 9).map(lambda digits: 10**digits),
        num_classes=st.sampled_from([None, 1, 2, 10**9]),
        median_size=st.sampled_from([1, 32, 10**6]),
    ),
)
def test_resolve_returns_or_names_fields(raw: dict[str, Any], facts: DatasetFacts) -> None:
    try:
        resolve(spec_of(**raw), facts)
    except SpecError as error:
        fields = [problem.field.partition(".")[0] for problem in error.problems]
        assert set(fields) <= JobSpec.model_fields.keys()


@pytest.mark.parametrize(
    ("parts", "images", "field"),
    [
        ({"method": {"name": "pcl"}}, 3 * 10**8, "method.bank_size"),
        ({"train": {"micro_batches": 10**9, "optimizer": {"lr": 0.1}}}, 10**10, "train.batch_size"),
    ],
)
def test_chosen_value_outside_its_range_names_the_field(
    parts: dict[str, Any], images: int, field: str
) -> None:
    facts = FACTS.model_copy(update={"num_images": images})
    problem = unresolvable(spec_of(**parts), facts)[0]
    assert (problem.field, problem.message) == (field, "is out of range")


def test_auto_values_fit_dataset_and_machine() -> None:
    small = resolve(spec_of(), FACTS.model_copy(update={"median_size": 39}))
    assert (small.backbone.image_size, small.backbone.stem) == (32, "small")
    assert (small.augment.blur, small.train.precision) == (0, "fp32")
    large = resolve(
        spec_of(
            backbone={"name": "vit_small_patch16_224"},
            resources={"workers": 4, "gpus_per_worker": 1},
        ),
        DatasetFacts(num_images=10**6, num_classes=None, median_size=500),
    )
    assert (large.backbone.image_size, large.backbone.stem) == (224, "standard")
    assert (large.augment.blur, large.train.precision) == (0.5, "bf16")
    assert (large.train.batch_size, large.train.optimizer.name) == (256, "adamw")
    assert small.train.optimizer.name == "sgd"
    supervised = {"method": {"name": "npair"}, "evaluate": {"holdout": {"by": "class"}}}
    assert resolve(spec_of(**supervised), FACTS).train.optimizer.name == "sgd"
    tuned = resolve(spec_of(**supervised, backbone={"pretrained": "/weights"}), FACTS)
    assert tuned.train.optimizer.name == "adamw"
    patched = resolve(spec_of(backbone={"name": "vit_small_patch14_dinov2"}), FACTS)
    assert patched.backbone.image_size == 64
    wider = FACTS.model_copy(update={"median_size": 100})
    patched = resolve(spec_of(backbone={"name": "vit_small_patch14_dinov2"}), wider)
    assert patched.backbone.image_size == 84


@pytest.mark.parametrize(
    ("name", "stem", "sizes"),
    [
        # Of images whose shorter side is 9, 48, 63, 72, 95, 100 and 500 pixels.
        ("resnet18", "auto", [32, 96, 96, 96, 96, 96, 224]),
        ("resnet18", "small", [32, 48, 56, 64, 64, 96, 224]),
        ("vit_small_patch16_224", "auto", [32, 48, 56, 64, 64, 96, 224]),
        ("resnet18", "standard", [32, 96, 96, 96, 96, 96, 224]),
        ("convnext_tiny", "auto", [32, 32, 32, 64, 64, 96, 224]),
    ],
)
def test_automatic_image_size_keeps_the_pixels_of_small_images(
    name: str, stem: str, sizes: list[int]
) -> None:
    spec = spec_of(backbone={"name": name, "stem": stem})
    chosen = [
        resolve(spec, FACTS.model_copy(update={"median_size": side})).backbone.image_size
        for side in (9, 48, 63, 72, 95, 100, 500)
    ]
    assert chosen == sizes


@pytest.mark.parametrize("side", [40, 64, 95])
def test_small_images_cost_a_resnet_no_more_than_larger_ones(side: int) -> None:
    """Neither the small stem, with sixteen times the computation, nor blur, for which 64 pixels are too few."""
    facts = FACTS.model_copy(update={"median_size": side})
    chosen = resolve(spec_of(), facts)
    assert (chosen.backbone.image_size, chosen.backbone.stem) == (96, "standard")
    assert (chosen.augment.blur != 0) == (side > 64)


@pytest.mark.parametrize(
    ("images", "workers", "batch"),
    [
        (16, 1, 7),
        (60, 1, 24),
        (68, 1, 24),
        (100, 3, 24),
        (270, 1, 32),
        (300, 3, 24),
        (3000, 3, 240),
    ],
)
def test_automatic_batch_is_a_multiple_of_eight_where_that_leaves_any(
    images: int, workers: int, batch: int
) -> None:
    facts = FACTS.model_copy(update={"num_images": images})
    assert resolve(spec_of(resources={"workers": workers}), facts).train.batch_size == batch


@pytest.mark.parametrize("images", [9, 20, 100, 5000])
@pytest.mark.parametrize("per_class", ["auto", 3])
def test_auto_batch_contains_at_least_two_classes(images: int, per_class: int | str) -> None:
    facts = FACTS.model_copy(update={"num_images": images})
    spec = spec_of(method={"name": "triplet"}, train={"samples_per_class": per_class})
    if images == 9 and per_class == "auto":
        (problem,) = unresolvable(spec, facts.model_copy(update={"num_images": 7}))
        assert problem.message == "has 7 images, which leave 6 for training; at least 8 are needed"
    train = resolve(spec, facts).train
    assert train.samples_per_class == (4 if per_class == "auto" else 3)
    assert train.batch_size % train.samples_per_class == 0
    assert train.batch_size >= 2 * train.samples_per_class


# --- schema, files, overrides


def test_overrides_change_fields_of_a_copy() -> None:
    spec = {"dataset": "x", "train": {"epochs": 1}, "dar": None}
    changed = apply_overrides(
        spec, ["train.epochs=7", "dar.weight=0.1", "method.name=simclr", "sec=null", "tags.a=b=c"]
    )
    assert changed == {
        "dataset": "x",
        "train": {"epochs": 7},
        "dar": {"weight": 0.1},
        "method": {"name": "simclr"},
        "sec": None,
        "tags": {"a": "b=c"},
    }
    assert spec == {"dataset": "x", "train": {"epochs": 1}, "dar": None}


@pytest.mark.parametrize("override", ["epochs", "=5", "dataset.name=x", "train.epochs=[1"])
def test_malformed_override_is_refused(override: str) -> None:
    with pytest.raises(ValueError, match="--set"):
        apply_overrides({"dataset": "x"}, [override])


@pytest.mark.parametrize("content", [b"- a\n- b", b"a: [", b"\xff\xfe", b"", b"just text"])
def test_file_without_spec_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "spec.yaml"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"spec\.yaml"):
        load_spec(file)
    with pytest.raises(ValueError, match="cannot be read"):
        load_spec(tmp_path / "absent.yaml")


# --- the catalog, and optional imports


def test_catalog_contains_models_of_timm() -> None:
    assert BACKBONES.keys() <= set(timm.list_models())
    assert {info.family for info in BACKBONES.values() if info.tested} == set(TESTED)
    for module in ("resnet", "vision_transformer", "convnext", "eva", "regnet"):
        family = FAMILIES.get(module, module)
        names = {name for name, info in BACKBONES.items() if info.family == family}
        assert names == set(timm.list_models(module=module))


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("test_vit", "vision_transformer"),
        ("resnet50d", "resnet"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("vit_small_patch16_224", "vision_transformer"),
                ("vit_small_patch16_dinov3", "eva"),
                ("convnext_tiny", "convnext"),
                ("mobilenetv3_small_050", "mobilenetv3"),
            )
        ),
    ],
)
def test_catalog_entry_describes_timm_model(name: str, module: str) -> None:
    described = describe(name, module)
    assert described is not None
    tested = BACKBONES[name].tested
    assert BACKBONES[name] == BackboneInfo.model_validate(described | {"tested": tested})


@pytest.mark.slow
def test_catalog_tells_convolutional_models_from_others_of_their_class() -> None:
    sizes = []
    for name in ("bat_resnext26ts", "test_byobnet"):  # the first has attention
        described = describe(name, "byobnet")
        assert described is not None
        assert described["sizes"] == BACKBONES[name].sizes
        sizes.append(described["sizes"])
    assert sizes == ["fixed", "any"]


def test_specs_are_immutable() -> None:
    spec = spec_of()
    with pytest.raises(ValidationError):
        spec.priority = 5  # type: ignore[misc]
    assert spec.priority == 0


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        ("dar.clusters.k=7", "dar.clusters.k: * dar.labels: instance; * dar.labels: cluster"),
        (
            "dar.clusters.every_epochs=7",
            "dar.clusters.every_epochs: * dar.labels: instance; * dar.labels: cluster",
        ),
        (
            "sec.target=zero sec.momentum=0.5",
            "sec.momentum: * sec.target: zero; * sec.target: mean",
        ),
        (
            "train.optimizer.name=adamw train.optimizer.momentum=0.5",
            "train.optimizer.momentum: * train.optimizer.name: adamw; * train.optimizer.name: sgd",
        ),
        (
            "train.optimizer.name=sgd train.optimizer.larc=0.02",
            "train.optimizer.larc: * train.optimizer.name: sgd; * train.optimizer.name: lars",
        ),
        (
            "evaluate.dataset=y evaluate.holdout.fraction=0.5",
            "evaluate.holdout: * evaluate.dataset; * evaluate.dataset: null",
        ),
        (
            "evaluate.gallery=gallery evaluate.retrieval=[]",
            "evaluate.gallery: * evaluate.retrieval: []; * evaluate.retrieval: [1]",
        ),
        (
            "augment.saturation=0.5 augment.jitter_probability=0",
            "augment.saturation: * augment.jitter_probability: 0; * augment.jitter_probability above 0",
        ),
        (
            "augment.saturation=0.5 method.name=npair",
            "augment.saturation: * augment.jitter: 0; * augment.jitter above 0",
        ),
        (
            "augment.channel_drop=0.5 backbone.in_channels=1",
            "augment.channel_drop: * backbone.in_channels: 1; * backbone.in_channels above 1",
        ),
    ],
)
def test_setting_without_effect_is_refused(settings: str, refusal: str) -> None:
    (problem,) = unresolvable(*chosen(settings))
    expected = refusal.replace("*", "has no effect with", 1).replace("*", "remove it or set", 1)
    assert str(problem).startswith(expected)


@pytest.mark.parametrize("name", REGULARIZERS)
@pytest.mark.parametrize(
    ("settings", "weight", "share"),
    [
        ({}, None, 0.1),
        ({"weight": "auto"}, None, 0.1),
        ({"weight": None, "share": 0.4}, None, 0.4),
        ({"weight": 0.7}, 0.7, None),
        ({"weight": 0, "share": "auto"}, 0, None),
    ],
)
def test_regularizer_has_a_weight_or_a_share(
    name: str, settings: dict[str, Any], weight: float | None, share: float | None
) -> None:
    is_top_level = REGULARIZERS[name].top_level
    parts = {name: settings} if is_top_level else {"regularizers": {name: settings}}
    resolved = resolve(spec_of(**parts), FACTS)
    chosen = resolved.given_regularizers()[name]
    assert (chosen.weight, chosen.share) == (weight, share)
    assert resolve(resolved, FACTS) == resolved
    assert (name in resolved.active_regularizers()) == (weight != 0)


@pytest.mark.parametrize(
    ("every", "patience", "field", "expected"),
    [
        ("auto", 9, "train.stop.patience", "at most 8"),
        (4, 2, "train.stop.patience", "at most 1"),
        (20, 2, "evaluate.every_epochs", "at most 3"),
        (1, 8, None, None),
        (3, 2, None, None),
    ],
)
def test_early_stopping_without_effect_is_refused(
    every: int | str, patience: int, field: str | None, expected: str | None
) -> None:
    stop = {"metric": "effective_rank", "patience": patience}
    spec = spec_of(train={"epochs": 10, "stop": stop}, evaluate={"every_epochs": every})
    if field is None:
        resolve(spec, FACTS)
        return
    (problem,) = unresolvable(spec, FACTS)
    assert problem.field == field
    assert "leaves train.stop without effect" in problem.message
    assert problem.expected == f"{expected}, or train.stop: null"


@pytest.mark.parametrize(
    ("metric", "hint"), [("Loss", ""), ("KNN top1", "did you mean 'knn_top1'")]
)
def test_name_that_no_metric_has_is_refused_with_metrics(metric: str, hint: str) -> None:
    (problem,) = problems_of({"dataset": "x", "train": {"stop": {"metric": metric}}})
    assert problem.field == "train.stop.metric"
    assert problem.message.startswith("is not the name of a metric")
    assert hint in problem.message
    assert "recall_at_1" in problem.expected


@pytest.mark.parametrize("method", ["simclr", "swav"])
def test_resolved_values_are_not_refused_as_without_effect(method: str) -> None:
    spec = {"dataset": "x", "method": {"name": method}, "dar": {}, "sec": {"target": "zero"}}
    spec["train"] = {"optimizer": {"name": "adamw"}}
    resolved = resolve(JobSpec.model_validate(spec), FACTS)
    assert resolve(resolved, FACTS) == resolved
    larger = FACTS.model_copy(update={"num_images": 10 * FACTS.num_images})
    assert resolve(resolved, larger) == resolved


def test_micro_batches_of_auto_batch_contain_two_images() -> None:
    spec = {"dataset": "x", "train": {"micro_batches": 4}, "method": {"name": "npair"}}
    few = FACTS.model_copy(update={"num_images": 20, "num_classes": 4})
    batch = resolve(JobSpec.model_validate(spec), few).train.batch_size
    assert isinstance(batch, int)
    assert batch >= 8


def test_auto_sec_schedule_grows_only_for_self_supervised_methods() -> None:
    for method, setting, ramp in (
        ("simclr", "auto", True),
        ("npair", "auto", False),
        ("npair", True, True),
        ("simclr", False, False),
    ):
        spec = {"dataset": "x", "method": {"name": method}, "sec": {"ramp": setting}}
        sec = resolve(JobSpec.model_validate(spec), FACTS).sec
        assert sec is not None
        assert sec.ramp is ramp


@pytest.mark.parametrize("method", METHODS)
def test_sec_is_refused_with_loss_that_does_not_compare_directions(method: str) -> None:
    config = METHODS[method].model_validate({"name": method})
    backbone = Backbone.model_validate(TINY_BACKBONES.get(method, {}))
    spec = JobSpec(dataset="x", method=config, backbone=backbone, sec=SEC())
    if config.compares_directions:
        assert resolve(spec, FACTS).sec is not None
    else:
        with pytest.raises(SpecError, match=f"^sec: .* that of {method} does not .*expected null"):
            resolve(spec, FACTS)


def test_auto_clusters_follow_number_of_images() -> None:
    assert [choose_k(n) for n in (2, 5_236, 126_689, 1_281_167)] == [2, 72, 356, 1132]
    assert choose_k(10**9) == 10_000


def _unbounded(node: Any, path: str = "") -> Iterator[str]:
    """Yield the places in a JSON schema where a number, a text or a list has no limit."""
    if isinstance(node, list):
        for number, entry in enumerate(node):
            yield from _unbounded(entry, f"{path}/{number}")
    elif isinstance(node, dict):
        limits = {
            "integer": {"maximum", "exclusiveMaximum"},
            "number": {"maximum", "exclusiveMaximum"},
            "string": {"maxLength"},
            "array": {"maxItems"},
        }.get(node.get("type", ""), set())
        if limits and not node.keys() & {*limits, "enum", "const"}:
            yield path
        for key, entry in node.items():
            yield from _unbounded(entry, f"{path}/{key}")


def test_every_field_is_bounded() -> None:
    """Unbounded values could overflow in sums, or fill memory and tables."""
    # A validator limits shares of an area to (0, 1].
    areas = ("crop_scale/anyOf/0/", "local_scale/anyOf/0/", "mask_ratio/prefixItems")
    unbounded = [
        path
        for path in _unbounded(JobSpec.model_json_schema())
        if not any(area in path for area in areas)
    ]
    assert unbounded == []


@pytest.mark.parametrize("batch", [10**9 + 1, 10**110, 10**400])
@pytest.mark.parametrize("method", ["simclr", "triplet"])
def test_batch_that_overflows_is_refused(method: str, batch: int) -> None:
    spec = {"dataset": "pictures", "method": {"name": method}, "train": {"batch_size": batch}}
    assert [problem.field for problem in problems_of(spec)] == ["train.batch_size"]


@pytest.mark.parametrize(
    ("images", "epochs", "every"),
    [(20, 10, 1), (60, 11, 2), (300, 54, 6), (556, 100, 10), (100_000, 100, 10)],
)
def test_few_images_are_trained_on_for_fewer_epochs(images: int, epochs: int, every: int) -> None:
    facts = DatasetFacts(num_images=images, num_classes=None, median_size=40)
    resolved = resolve(JobSpec.model_validate({"dataset": "birds"}), facts)
    assert resolved.train.epochs == epochs
    assert (resolved.evaluate.every_epochs, resolved.train.checkpoint_every_epochs) == (
        every,
        every,
    )
    authors = JobSpec.model_validate({"dataset": "birds", "recipe": "authors"})
    assert resolve(authors, facts).train.epochs == 100


def test_setting_that_the_chosen_epochs_refuse_names_them() -> None:
    facts = DatasetFacts(num_images=60, num_classes=None, median_size=40)
    spec = JobSpec.model_validate({"dataset": "birds", "train": {"warmup_epochs": 30}})
    with pytest.raises(SpecError) as refused:
        resolve(spec, facts)
    assert [str(problem) for problem in refused.value.problems] == [
        "train.warmup_epochs: is longer than the training: train.epochs is 11 (given 30.0; expected at most 11)"
    ]


def test_estimate_counts_views_teachers_and_sizes() -> None:
    facts = DatasetFacts(num_images=1000, num_classes=None, median_size=224)

    def costs(**spec: Any) -> Estimate:
        job = JobSpec.model_validate({"dataset": "birds", "train": {"epochs": 10}, **spec})
        return estimate(resolve(job, facts), facts)

    info = BACKBONES["resnet18"]
    assert info.multiply_adds is not None
    assert info.activations is not None
    simclr = costs()
    assert simclr.flops_per_image == 2 * 3 * 2 * info.multiply_adds
    assert simclr.activation_bytes_per_worker == 4 * 112 * 2 * info.activations
    assert (simclr.checkpoints_kept, simclr.checkpoint_bytes) == (10, 12 * info.parameters)
    # The teacher sees both views without a backward pass, and is saved, too.
    byol = costs(method={"name": "byol"})
    assert byol.flops_per_image == 2 * (3 + 1) * 2 * info.multiply_adds
    assert byol.checkpoint_bytes == 16 * info.parameters
    assert byol.state_bytes_per_worker - simclr.state_bytes_per_worker == 4 * info.parameters
    kept = costs(checkpoints={"keep_last": 2, "keep_best": 1})
    assert kept.checkpoints_bytes == (3 * 12 + 4) * info.parameters
    half = costs(backbone={"image_size": 112}).flops_per_image
    assert half == simclr.flops_per_image // 4
    halves = costs(train={"epochs": 10, "micro_batches": 2})
    assert halves.activation_bytes_per_worker == simclr.activation_bytes_per_worker // 2
