"""`train.head_only_epochs`: the backbone is frozen in the first epochs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dasl_core.data.index import DatasetIndex
from dasl_core.methods import build_method
from dasl_core.seeds import derive_seed
from dasl_core.spec import DatasetFacts, JobSpec, ResolvedJobSpec, SpecError, resolve
from dasl_core.train.serialization import load_state
from tests.dasl_core.test_distributed import whole_run
from tests.support.gloo_pool import GlooPool
from tests.support.training_world import (
    recorded,
    resolved,
    resolved_from_checkpoint,
    run_and_resume,
    tiny_spec,
)

pytestmark = pytest.mark.usefixtures("without_plots")
SGD = {"name": "sgd", "lr": 0.05, "weight_decay": 0.1}


def spec_of(index: DatasetIndex, workers: int = 1, **train: Any) -> ResolvedJobSpec:
    settings = {"precision": "fp64", "optimizer": SGD, "head_only_epochs": 1} | train
    return resolved_from_checkpoint(
        index, method={"name": "byol"}, train=settings, resources={"workers": workers}
    )


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = load_state(folder)["method"]
    return weights


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_only_heads_learn_in_first_epochs(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, micro_batches: int
) -> None:
    spec = spec_of(pictures, micro_batches=micro_batches, epochs=2)
    reporter = recorded(spec, pictures, cache, tmp_path)
    torch.manual_seed(derive_seed(spec.train.seed, "weights"))
    start = build_method(spec).double().state_dict()
    first, last = (weights_of(folder) for _, folder, _ in reporter.checkpoints[:2])
    networks = ("backbone.", "teacher.backbone.")
    learned = {name for name, value in start.items() if not torch.equal(first[name], value)}
    assert not any(name.startswith(networks) for name in learned), "includes running statistics"
    assert learned >= {"projector.0.weight", "teacher.head.0.weight", "predictor.0.weight"}
    for name, value in first.items():
        if name.startswith(networks):
            assert not torch.equal(last[name], value), name


def test_frozen_epochs_resume_bit_exactly(
    pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    # It ends while the backbone is frozen.
    run_and_resume(spec_of(pictures, epochs=2), pictures, cache, tmp_path, 2)


@pytest.mark.slow
def test_frozen_epochs_on_two_ranks_equal_those_on_one(
    pool: GlooPool, pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    one = whole_run(
        spec_of(pictures, epochs=2).model_dump(mode="json"), pictures, cache, tmp_path / "1"
    )
    spec = spec_of(pictures, workers=2, epochs=2).model_dump(mode="json")
    two = pool.call(2, whole_run, spec, pictures, cache, tmp_path / "2")[0]
    np.testing.assert_allclose(two["losses"]["loss"], one["losses"]["loss"], rtol=0, atol=1e-10)
    for name, weight in one["weights"].items():
        np.testing.assert_allclose(two["weights"][name], weight, rtol=1e-11, atol=1e-10)


def test_thawed_backbone_keeps_what_was_frozen_before() -> None:
    facts = DatasetFacts(num_images=100, num_classes=None, median_size=32)
    method = build_method(
        resolve(
            JobSpec.model_validate(
                tiny_spec(
                    method={"name": "moco_v3"}, backbone={"name": "test_vit", "image_size": 32}
                )
            ),
            facts,
        )
    )
    before = {name for name, weight in method.named_parameters() if weight.requires_grad}
    assert "backbone.patch_embed.proj.weight" not in before
    method.freeze_backbone()
    frozen = {name for name, weight in method.named_parameters() if weight.requires_grad}
    assert frozen == {name for name in before if not name.startswith("backbone.")}
    method.eval()
    method.train()
    layers = [method.backbone, *method.teachers()]
    assert not any(module.training for layer in layers for module in layer.modules())
    assert method.get_submodule("projector").training
    method.thaw_backbone()
    assert {name for name, weight in method.named_parameters() if weight.requires_grad} == before
    assert all(
        module.training for module in method.modules() if not isinstance(module, nn.Identity)
    )


def test_backbone_must_learn_in_some_epoch(pictures: DatasetIndex) -> None:
    with pytest.raises(SpecError) as raised:
        spec_of(pictures, epochs=3, head_only_epochs=3)
    (problem,) = raised.value.problems
    assert (problem.field, problem.expected) == ("train.head_only_epochs", "at most 2")


def test_random_backbone_is_not_frozen(pictures: DatasetIndex) -> None:
    with pytest.raises(SpecError, match=r"train\.head_only_epochs: would keep random weights"):
        resolved(pictures, train={"head_only_epochs": 1})
