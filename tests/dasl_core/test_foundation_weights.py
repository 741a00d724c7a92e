"""Weights of DINOv2 and DINOv3, in the layouts in which they are published, continue and export."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from dasl_core.data.index import DatasetIndex
from dasl_core.models.backbone import build_backbone, timm_arguments
from dasl_core.models.freeze import freeze_first_blocks
from dasl_core.models.masked_vit import vit_tokens
from dasl_core.models.transformers_layout import to_transformers_layout
from dasl_core.spec import BACKBONES, SpecError
from dasl_core.spec.normalization import IMAGENET
from tests.support.methods import backbone_of
from tests.support.training_world import assert_same, recorded, resolved

pytestmark = pytest.mark.usefixtures("without_plots", "shallow")

V2, V2_REGISTERS = "vit_small_patch14_dinov2", "vit_small_patch14_reg4_dinov2"
V3, V3_BIAS = "vit_small_patch16_dinov3", "vit_tiny_patch16_dinov3_qkvb"
Weights = dict[str, Tensor]


def random_network(name: str, **arguments: Any) -> nn.Module:
    """Build a network whose constant weights, such as biases of 0, are random, too."""
    torch.manual_seed(1)
    model: nn.Module = timm.create_model(name, num_classes=0, **arguments)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
    return model


def authors_layout(name: str, weights: Weights) -> Weights:
    """Name weights as the authors' files do."""
    width = weights["cls_token"].shape[-1]
    published = {"mask_token": torch.zeros(1, width)}
    if name in (V2, V2_REGISTERS):
        published |= weights
        if name == V2_REGISTERS:  # timm's position embeddings have no row for the class token
            published["register_tokens"] = published.pop("reg_token")
            row = torch.full((1, 1, width), 0.5)
            published["cls_token"] = published["cls_token"] - row
            published["pos_embed"] = torch.cat([row, published["pos_embed"]], dim=1)
        return published
    published["rope_embed.periods"] = torch.ones(8)
    for key, value in weights.items():
        key = key.replace("gamma_1", "ls1.gamma").replace("gamma_2", "ls2.gamma")
        if not key.endswith(("q_bias", "v_bias")):
            published[key.replace("reg_token", "storage_tokens")] = value
    for block in range(2):
        prefix = f"blocks.{block}.attn."
        zeros = torch.zeros(width)
        parts = [weights.get(f"{prefix}{part}_bias", zeros) for part in "qkv"]
        published[f"{prefix}qkv.bias"] = torch.cat(parts)
        published[f"{prefix}qkv.bias_mask"] = torch.ones(3 * width)
    return published


@pytest.mark.parametrize("layout", ["authors", "transformers"])
@pytest.mark.parametrize("name", [V2, V2_REGISTERS, V3, V3_BIAS])
def test_published_layout_loads(tmp_path: Path, name: str, layout: str) -> None:
    model = random_network(name).eval()
    published = authors_layout(name, model.state_dict())
    if layout == "transformers":
        published = to_transformers_layout(model.state_dict())
    torch.save(published, tmp_path / "published.pth")
    # DINOv2 is published for 518 pixels, 37 by 37 patches.
    size = BACKBONES[name].image_size
    backbone = backbone_of(name, size, pretrained=str(tmp_path / "published.pth"))
    for key, value in build_backbone(backbone).state_dict().items():
        torch.testing.assert_close(value, model.state_dict()[key], msg=key)


@pytest.mark.parametrize("starts_from", ["file", "checkpoint"])
@pytest.mark.parametrize("average", [True, False])
def test_class_token_starts_from_weights_of_averaged_patches(
    tmp_path: Path, average: bool, starts_from: str
) -> None:
    """And the reverse: the normalization has another name, and its weights are kept."""
    name, start = "eva02_tiny_patch14_224", tmp_path
    model = random_network(name, img_size=28, global_pool="avg" if average else "token").eval()
    save_file(model.state_dict(), tmp_path / "backbone.safetensors")
    backbone = backbone_of(name, 28, pooling="token" if average else "timm")
    if starts_from == "file":
        start = tmp_path / "published.safetensors"
        (tmp_path / "backbone.safetensors").rename(start)
    description = {"timm": timm_arguments(backbone), "stem": []}
    description["preprocessing"] = IMAGENET.model_dump()
    (tmp_path / "model.json").write_text(json.dumps(description))
    network = build_backbone(backbone.model_copy(update={"pretrained": str(start)})).eval()
    ours, theirs = ("norm", "fc_norm") if average else ("fc_norm", "norm")
    weights = network.state_dict()
    assert f"{theirs}.weight" not in weights
    assert torch.equal(weights[f"{ours}.weight"], model.state_dict()[f"{theirs}.weight"])
    images = torch.randn(2, 3, 28, 28)
    with torch.no_grad():
        tokens = [vit_tokens(each, images) for each in (model, network)]
    torch.testing.assert_close(*tokens)


def test_biases_that_the_model_lacks_are_refused(tmp_path: Path) -> None:
    published = authors_layout(V3, random_network(V3).state_dict())
    published["blocks.1.attn.qkv.bias"][-1] = 0.1  # the last of those of values
    torch.save(published, tmp_path / "published.pth")
    backbone = backbone_of(V3, 32, pretrained=str(tmp_path / "published.pth"))
    with pytest.raises(ValueError, match=rf"blocks\.1\.attn\.qkv\.bias is not 0.*: {V3}_qkvb,"):
        build_backbone(backbone)


@pytest.mark.parametrize(
    ("name", "size", "frozen"), [pytest.param(V2, 28, 0, marks=pytest.mark.slow), (V3, 32, 1)]
)
def test_foundation_weights_continue_for_50_steps(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, name: str, size: int, frozen: int
) -> None:
    model = random_network(name)
    torch.save(authors_layout(name, model.state_dict()), tmp_path / "published.pth")
    spec = resolved(
        pictures,
        method={"name": "ibot", "local_crops": 0, "koleo": 0.1},
        backbone={
            "name": name,
            "image_size": size,
            "stem": "standard",
            "pretrained": str(tmp_path / "published.pth"),
            "freeze_blocks": frozen,
        },
        train={"epochs": 9, "batch_size": 4, "checkpoint_every_epochs": 6},
        evaluate={"holdout": None},
    )
    assert spec.recipe == "continue"
    assert spec.backbone.normalization.is_close(IMAGENET)
    whole = recorded(spec, pictures, cache, tmp_path / "whole")
    assert [step for step, _, _ in whole.checkpoints] == [36, 54]
    resumed = recorded(spec, pictures, cache, tmp_path / "resumed", whole.checkpoints[0][1])
    weights = load_file(whole.last_checkpoint / "backbone.safetensors")
    assert_same(weights, load_file(resumed.last_checkpoint / "backbone.safetensors"), name)
    # Near the start, and changed.
    before, after = model.state_dict()["norm.weight"], weights["norm.weight"]
    assert 0 < float((after - before).abs().max()) < 0.05
    for part, keeps in (("patch_embed", frozen > 0), ("blocks.0", frozen > 0), ("blocks.1", False)):
        kept = [
            torch.equal(value, model.state_dict()[key])
            for key, value in weights.items()
            if key.startswith(part)
        ]
        assert all(kept) if keeps else not all(kept)
    description: dict[str, Any] = json.loads((whole.last_checkpoint / "model.json").read_text())
    timm.create_model(**description["timm"]).load_state_dict(weights)


@pytest.mark.parametrize("name", ["test_resnet", "test_convnext", "test_efficientnet", V3])
def test_first_blocks_are_frozen_in_every_family(name: str) -> None:
    model = timm.create_model(name, num_classes=0)
    freeze_first_blocks(model, 1)
    learns = [parameter.requires_grad for parameter in model.parameters()]
    assert not learns[0]
    assert learns[-1]
    assert any(learns)
    with pytest.raises(ValueError, match=r"backbone\.freeze_blocks: 99 leaves nothing"):
        freeze_first_blocks(model, 99)


def test_random_weights_are_not_frozen(pictures: DatasetIndex) -> None:
    with pytest.raises(SpecError, match=r"backbone\.freeze_blocks: would keep random weights"):
        resolved(pictures, backbone={"freeze_blocks": 1})
