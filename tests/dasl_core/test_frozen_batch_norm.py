"""`backbone.freeze_batch_norm`: statistics, weights and biases of the start are kept."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from dasl_core.data.index import DatasetIndex
from dasl_core.methods import build_method
from dasl_core.seeds import derive_seed
from dasl_core.spec import JobSpec, SpecError, resolve
from dasl_core.spec.locations import CHECKPOINT_WEIGHTS
from dasl_core.train.serialization import load_state
from tests.dasl_core.test_distributed import one_step
from tests.support.gloo_pool import GlooPool
from tests.support.training_world import recorded, resolved, resolved_from_checkpoint, tiny_spec

pytestmark = pytest.mark.usefixtures("without_plots")


@pytest.mark.parametrize("kind", ["statistics", "all"])
def test_frozen_batch_norm_is_kept_and_exported(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, kind: str
) -> None:
    spec = resolved_from_checkpoint(
        pictures,
        method={"name": "byol", "keep": "teacher"},
        backbone={"freeze_batch_norm": kind},
        train={"epochs": 1, "optimizer": {"name": "sgd", "lr": 0.05}},
    )
    torch.manual_seed(derive_seed(spec.train.seed, "weights"))
    method = build_method(spec)
    start = {name: value.clone() for name, value in method.state_dict().items()}
    layers = [
        f"{network}.{name}"
        for network in ("backbone", "teacher.backbone")
        for name, layer in method.backbone.named_modules()
        if isinstance(layer, nn.BatchNorm2d)
    ]
    reporter = recorded(spec, pictures, cache, tmp_path)
    trained = load_state(reporter.last_checkpoint)["method"]
    same = {name for name, value in start.items() if torch.equal(trained[name], value)}
    statistics = {f"{x}.{y}" for x in layers for y in ("running_mean", "running_var")}
    affine = {f"{x}.{y}" for x in layers for y in ("weight", "bias")}
    assert same >= statistics
    assert (same >= affine) == (kind == "all")
    assert not same & {"projector.0.weight", "projector.1.running_mean", "projector.1.weight"}
    assert any(name.startswith("backbone.") for name in start.keys() - same)
    exported = load_file(reporter.last_checkpoint / CHECKPOINT_WEIGHTS)
    assert exported.keys() == method.backbone.state_dict().keys()


def test_frozen_batch_norm_on_two_ranks_equals_that_on_one(
    pool: GlooPool, pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    def spec(workers: int) -> dict[str, object]:
        return resolved_from_checkpoint(
            pictures,
            backbone={"freeze_batch_norm": "all"},
            train={"precision": "fp64", "optimizer": {"name": "sgd", "lr": 0.05}},
            resources={"workers": workers},
        ).model_dump(mode="json")

    terms, gradients = one_step(spec(1), pictures, cache, tmp_path)
    assert "backbone.bn1.weight" not in gradients
    for together, theirs in pool.call(2, one_step, spec(2), pictures, cache, tmp_path):
        assert together == pytest.approx(terms, abs=1e-10)
        assert max(abs(theirs[n] - gradients[n]).max() for n in gradients) < 1e-10


def test_frozen_batch_norm_needs_batch_norm(pictures: DatasetIndex) -> None:
    with pytest.raises(SpecError) as raised:
        resolved(pictures, backbone={"name": "test_vit", "freeze_batch_norm": "all"})
    assert [problem.field for problem in raised.value.problems] == ["backbone.freeze_batch_norm"]
    method = build_method(resolved(pictures, backbone={"name": "test_vit"}))
    with pytest.raises(ValueError, match=r"backbone\.freeze_batch_norm has no effect"):
        method.freeze_batch_norm(affine=True)


def test_statistics_of_random_weights_are_not_kept(pictures: DatasetIndex) -> None:
    with pytest.raises(
        SpecError, match=r"backbone\.freeze_batch_norm: would keep .* random weights"
    ):
        resolved(pictures, backbone={"freeze_batch_norm": "statistics"})
    own = tiny_spec(backbone={"name": "own", "freeze_batch_norm": "statistics"})
    facts = pictures.facts()
    assert resolve(JobSpec.model_validate(own), facts, own_features=8).backbone.is_own
