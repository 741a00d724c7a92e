"""Branches: runs that continue from another run's checkpoint with changed settings."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from dasl_core.data.index import DatasetIndex
from dasl_core.methods import build_method
from dasl_core.spec import METHODS, DatasetFacts, JobSpec, branch_problems, resolve
from dasl_core.spec.branch import shape_fields
from dasl_core.train.checkpointing import TrainingState
from dasl_core.train.serialization import StateCopy, load_state
from dasl_core.train.validation import Validator
from tests.support.training_world import (
    SMALL,
    Recorder,
    assert_same,
    recorded,
    resolved,
    run,
    tiny_spec,
)

pytestmark = pytest.mark.usefixtures("without_plots")
SOURCE: dict[str, Any] = {
    "backbone": {"stem": "small"},  # see test_resume, for bf16
    "method": {"name": "byol", "hidden_dim": 8, "projection_dim": 4},
    "sec": {"weight": 0.5, "momentum": 0.4},
    "train": {"epochs": 2, "optimizer": {"name": "sgd", "lr": 0.05}},
}
STEPS = 3  # an epoch of `pictures`


@pytest.fixture(scope="module")
def source(
    pictures: DatasetIndex, cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Recorder:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Validator, "publish_plots", lambda *_: None)
        folder = tmp_path_factory.mktemp("source")
        return recorded(resolved(pictures, **SOURCE), pictures, cache, folder)


def changed(**parts: Any) -> dict[str, Any]:
    """The source's settings for three epochs, with changes in each section."""
    spec = {name: dict(part) for name, part in SOURCE.items()}
    spec["train"]["epochs"] = 3
    for name, part in parts.items():
        spec[name] = spec.get(name, {}) | part
    return spec


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"train": {"optimizer": {"name": "adamw", "lr": 0.001}}},
        # Clusters are those of the epoch before.
        {"dar": {"weight": 0.1, "labels": "cluster", "clusters": {"k": 3}}, "train": {"epochs": 4}},
        *(
            pytest.param(changes, marks=pytest.mark.slow)
            for changes in (
                {"train": {"optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.5}}},
                {"train": {"optimizer": {"name": "sgd", "lr": 0.05, "layer_decay": 0.5}}},
                {"train": {"precision": "bf16"}},
                {"sec": {"weight": 0.1, "target": "zero", "momentum": 1.0}},
                {"augment": {"jitter": 0.1}, "method": {"teacher_momentum": 0.5}},
            )
        ),
    ],
    ids=str,
)
def test_branch_continues_with_weights_and_step(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, source: Recorder, changes: dict[str, Any]
) -> None:
    spec = resolved(pictures, **changed(**changes))
    assert branch_problems(resolved(pictures, **SOURCE), spec) == []
    began: dict[str, Any] = {}
    load = TrainingState.load

    def seen(state: TrainingState, folder: Path, *, branch: bool) -> None:
        load(state, folder, branch=branch)
        began["method"] = copy.deepcopy(dict(state.method.state_dict()))
        began["optimizer"] = copy.deepcopy(state.updater.optimizer.state_dict())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingState, "load", seen)
        reporter = recorded(spec, pictures, cache, tmp_path, source.last_checkpoint, branch=True)
    steps = [point["step"] for point in reporter.points if "loss" in point["values"]]
    assert steps == list(range(2 * STEPS + 1, spec.train.epochs * STEPS + 1))

    before = load_state(source.last_checkpoint)
    assert_same(began["method"], before["method"], "method")
    optimizer = spec.train.optimizer
    if optimizer.name == "sgd" and optimizer.layer_decay == 1:
        assert_same(began["optimizer"]["state"], before["optimizer"]["state"], "optimizer")
        momenta = {group["momentum"] for group in began["optimizer"]["param_groups"]}
        assert momenta == {optimizer.momentum}
    else:
        assert began["optimizer"]["state"] == {}


def test_branch_may_round_the_normalization(pictures: DatasetIndex) -> None:
    def fields(mean: float) -> list[str]:
        backbone = {"mean": [mean] * 3, "std": [0.5] * 3}
        before, after = (
            resolved(pictures, **changed(backbone=backbone | each))
            for each in ({}, {"mean": [0.5] * 3})
        )
        return [problem.field for problem in branch_problems(before, after)]

    assert fields(0.500003) == []
    assert fields(0.501) == ["backbone.mean"]


def test_branch_without_changes_is_exact(
    pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    spec = resolved(pictures, **SOURCE | {"dar": {"weight": 0.1, "labels": "cluster"}})
    stopped = Recorder(tmp_path / "stopped", lambda started: "pause" if started >= 4 else "run")
    assert run(spec, pictures, cache, stopped) == "paused"
    ends = []
    for name, branch in (("exact", False), ("branch", True)):
        reporter = recorded(
            spec, pictures, cache, tmp_path / name, stopped.last_checkpoint, branch=branch
        )
        ends.append(load_state(reporter.last_checkpoint))
    assert [end["progress"].pop("branched_at") for end in ends] == [0, stopped.checkpoints[-1][0]]
    assert_same(ends[0], ends[1], "state")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": {"epochs": 2}}, "train.epochs: the checkpoint is of step 6, and 2 epochs end"),
        ({"method": {"projection_dim": 6}}, "does not fit this method and backbone"),
        ({"backbone": {"in_channels": 1}}, "does not fit this method and backbone"),
        ({"evaluate": {"holdout": {"fraction": 0.5}}}, "images to train on"),
    ],
    ids=["epochs", "width", "channels", "data"],
)
def test_branch_that_does_not_fit_is_refused(
    pictures: DatasetIndex,
    cache: Path,
    tmp_path: Path,
    source: Recorder,
    changes: dict[str, Any],
    message: str,
) -> None:
    spec = resolved(pictures, **changed(**changes))
    with pytest.raises(ValueError, match=message):
        run(spec, pictures, cache, Recorder(tmp_path), source.last_checkpoint, branch=True)


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"method": {"name": "simclr"}}, ["method.name"]),
        (
            {"method": {"hidden_dim": 9, "projection_dim": 5}},
            ["method.projection_dim", "method.hidden_dim"],
        ),
        (
            {"train": {"batch_size": 4}, "backbone": {"in_channels": 1}},
            ["backbone.in_channels", "train.batch_size"],
        ),
        ({"evaluate": {"holdout": {"fraction": 0.5}}}, ["evaluate.holdout"]),
        ({"backbone": {"std": [0.5, 0.5, 0.5]}}, ["backbone.std"]),
    ],
)
def test_branch_names_setting_that_fixes_shapes(
    pictures: DatasetIndex, changes: dict[str, Any], fields: list[str]
) -> None:
    spec = changed(**changes)
    if "name" in changes.get("method", {}):
        spec["method"] = changes["method"]
    problems = branch_problems(resolved(pictures, **SOURCE), resolved(pictures, **spec))
    assert [problem.field for problem in problems] == fields
    assert all(problem.expected for problem in problems)


def test_branch_may_change_number_of_ranks(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, source: Recorder
) -> None:
    state = load_state(source.last_checkpoint)
    state["ranks"] *= 2
    StateCopy.copy(state).write(tmp_path)
    spec = resolved(pictures, **changed())
    with pytest.raises(ValueError, match="other settings"):
        run(spec, pictures, cache, Recorder(tmp_path / "exact"), tmp_path)
    recorded(spec, pictures, cache, tmp_path / "branch", tmp_path, branch=True)


@pytest.mark.parametrize("method", METHODS)
def test_shape_fields_are_those_that_change_a_tensor(method: str) -> None:
    """Only larger values of marked fields change the shape of a weight."""
    marked = set(shape_fields(method))
    own = {"name": method} | SMALL[method]
    beside = {
        "dataset": "x",
        "backbone": tiny_spec(method={"name": method})["backbone"],
        "train": {"batch_size": 8},
    }
    facts = DatasetFacts(num_images=300, num_classes=3, median_size=16)

    def shapes(**changes: object) -> dict[str, torch.Size]:
        spec = resolve(JobSpec.model_validate(beside | {"method": own | changes}), facts)
        return {name: t.shape for name, t in build_method(spec, 3).state_dict().items()}

    before = shapes()
    settings = resolve(JobSpec.model_validate(beside | {"method": own}), facts).method
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, bool):
            changed: object = not value
        elif isinstance(value, int):
            changed = value + 16  # a queue in whole batches, a crop in whole patches
        else:
            continue  # rates, temperatures, names
        assert (shapes(**{name: changed}) != before) == (name in marked), name
