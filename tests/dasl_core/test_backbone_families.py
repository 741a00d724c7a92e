"""Networks of all tested families are trained, resumed bit for bit and exported."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file

from dasl_core.data.index import DatasetIndex
from dasl_core.models.backbone import build_backbone, feature_width
from dasl_core.spec import BACKBONES, DatasetFacts, JobSpec, SpecError, resolve
from dasl_core.spec.backbones import TESTED
from tests.support.methods import backbone_of
from tests.support.shallow_networks import SHALLOW
from tests.support.training_world import assert_same, families_first, recorded, resolved, tiny_spec

pytestmark = pytest.mark.usefixtures("without_plots")

FACTS = DatasetFacts(num_images=200, num_classes=4, median_size=300)
# A small network of each family, but for ResNets and ViTs, which the other tests train.
NETWORKS = {
    "convnext": "test_convnext",
    "efficientnet": "test_efficientnet",
    "eva": "vit_tiny_patch16_dinov3_qkvb",
    "mobilenetv3": "mobilenetv3_small_050",
    "regnet": "regnetx_002",
    "swin_transformer": "swin_tiny_patch4_window7_224",
}


def test_each_tested_family_has_a_network() -> None:
    assert set(TESTED) == {*NETWORKS, "resnet", "vit"}
    assert all(BACKBONES[name].family == family for family, name in NETWORKS.items())


@pytest.mark.usefixtures("shallow")
@pytest.mark.parametrize("family", families_first(NETWORKS, ("convnext", "swin_transformer")))
def test_network_is_trained_resumed_and_exported(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, family: str
) -> None:
    with_crops = family == "eva"
    spec = resolved(
        pictures,
        method={"name": "dino", "local_crops": 2, "local_size": 32} if with_crops else {},
        backbone={
            "name": NETWORKS[family],
            "image_size": 64 if with_crops else 32,
            "drop_path": 0.1,
        },
        train={
            "epochs": 2,
            "batch_size": 8,
            "checkpoint_activations": True,
            "optimizer": {"layer_decay": 0.9},
        },
        evaluate={"holdout": None},
    )
    whole = recorded(spec, pictures, cache, tmp_path / "whole")
    resumed = recorded(spec, pictures, cache, tmp_path / "resumed", whole.checkpoints[0][1])
    weights = load_file(whole.last_checkpoint / "backbone.safetensors")
    assert_same(weights, load_file(resumed.last_checkpoint / "backbone.safetensors"), family)
    description = json.loads((whole.last_checkpoint / "model.json").read_text())
    model = timm.create_model(**description["timm"]).eval()
    model.load_state_dict(weights)
    size = spec.backbone.image_size
    with torch.no_grad():
        assert model(torch.zeros(1, 3, size, size)).shape == (1, feature_width(model))
    if NETWORKS[family] not in SHALLOW:
        assert feature_width(model) == BACKBONES[NETWORKS[family]].features


@pytest.mark.parametrize(
    ("name", "field", "value", "message", "expected"),
    [
        ("bat_resnext26ts", "image_size", 96, "must be 256 for bat_resnext26ts", "256"),
        ("swin_tiny_patch4_window7_224", "image_size", 100, "divisible by 32", "such as 96"),
        ("convnext_tiny", "stem", "small", "must be standard for convnext_tiny", "standard"),
        ("densenet121", "drop_path", 0.1, "without stochastic depth", "0"),
    ],
)
def test_setting_that_network_cannot_have_is_refused(
    name: str, field: str, value: Any, message: str, expected: str
) -> None:
    backbone = {"name": name, field: value}
    with pytest.raises(SpecError) as caught:
        resolve(JobSpec.model_validate(tiny_spec(backbone=backbone)), FACTS)
    (problem,) = (p for p in caught.value.problems if p.field == f"backbone.{field}")
    assert message in problem.message
    assert problem.expected.startswith(expected)


def test_network_without_drop_path_needs_no_setting() -> None:
    spec = JobSpec.model_validate(tiny_spec(backbone={"name": "densenet121", "image_size": 64}))
    assert resolve(spec, FACTS).backbone.drop_path == 0


def test_local_crops_need_network_of_several_sizes() -> None:
    spec = tiny_spec(
        method={"name": "dino"}, backbone={"name": "mixer_b16_224", "image_size": "auto"}
    )
    with pytest.raises(SpecError) as caught:
        resolve(JobSpec.model_validate(spec), FACTS)
    (problem,) = caught.value.problems
    assert problem.field == "method.local_crops"
    spec["method"]["local_crops"] = 0
    assert resolve(JobSpec.model_validate(spec), FACTS).backbone.image_size == 224


def test_network_of_one_size_gets_it() -> None:
    spec = JobSpec.model_validate(
        tiny_spec(backbone={"name": "bat_resnext26ts", "image_size": "auto"})
    )
    small = FACTS.model_copy(update={"median_size": 40})
    assert resolve(spec, small).backbone.image_size == 256
    assert resolve(spec, small).backbone.stem == "standard"


def test_networks_without_batchnorm_get_adamw() -> None:
    def optimizer(name: str) -> str:
        spec = JobSpec.model_validate(tiny_spec(backbone={"name": name, "image_size": 64}))
        return resolve(spec, FACTS).train.optimizer.name

    assert {name: optimizer(name) for name in ("convnext_tiny", "vit_small_patch16_dinov3")} == {
        "convnext_tiny": "adamw",
        "vit_small_patch16_dinov3": "adamw",
    }
    assert optimizer("efficientnet_b0") == optimizer("regnety_008") == "sgd"


@pytest.mark.usefixtures("shallow")
@pytest.mark.parametrize("family", ["convnext", "eva", "regnet", "swin_transformer"])
def test_published_weights_of_family_load(tmp_path: Path, family: str) -> None:
    name = NETWORKS[family]
    torch.manual_seed(1)
    published = timm.create_model(name, num_classes=7)
    file = tmp_path / "weights.pth"
    torch.save({"model": published.state_dict()}, file)
    backbone = backbone_of(name, 64, pretrained=str(file))
    theirs = published.state_dict()
    for key, value in build_backbone(backbone).state_dict().items():
        if theirs[key].shape == value.shape:  # window tables of a Swin depend on the size
            assert torch.equal(value, theirs[key]), key
