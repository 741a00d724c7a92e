"""DINOv2 and DINOv3 in the layout of transformers, which is not installed here."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor

from dasl_core.data.index import DatasetIndex
from dasl_core.export import ExportError, export_backbone, export_checkpoint
from dasl_core.export.transformers_folder import transformers_config
from dasl_core.models.backbone import build_backbone
from dasl_core.models.transformers_layout import to_authors_layout, to_transformers_layout
from dasl_core.spec import ResolvedBackbone
from dasl_core.spec.normalization import IMAGENET, recorded_normalization
from tests.support.exports import images_for, shake
from tests.support.training_world import resolved

# What `save_pretrained` of transformers 5.23 wrote for networks of width 24 with one block and three heads.
WRITTEN: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "fixtures" / "transformers_layout.json").read_text()
)
NOTHING_MEASURED: dict[str, Any] = {"step": 0, "epoch": 0.0, "evaluations": []}


@pytest.mark.parametrize("name", WRITTEN)
def test_names_shapes_and_config_are_those_of_transformers(name: str) -> None:
    written = WRITTEN[name]
    size = written["config"]["image_size"]
    with torch.device("meta"):
        network = timm.create_model(
            name, num_classes=0, embed_dim=24, depth=1, num_heads=3, img_size=size
        )
    weights = network.state_dict()
    named = to_transformers_layout(weights)
    assert {key: list(value.shape) for key, value in named.items()} == written["weights"]
    backbone = ResolvedBackbone(name=name, image_size=size, stem="standard", **dict(IMAGENET))
    config = transformers_config(network, weights, backbone)
    assert config == {key: written["config"].get(key) for key in config}


def in_memory_of_version_5(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Name the weights of a gated `Dinov2Model` as transformers 5 does in memory."""
    renamed: dict[str, Tensor] = {}
    for key, value in weights.items():
        if ".mlp.weights_in." in key:
            for part, its in zip(("gate", "up"), value.chunk(2), strict=True):
                renamed[key.replace("weights_in", f"{part}_proj")] = its
            continue
        for theirs in ("query", "key", "value"):
            key = key.replace(f"attention.attention.{theirs}", f"attention.{theirs[0]}_proj")
        key = key.replace("attention.output.dense", "attention.o_proj")
        renamed[key.replace("weights_out", "down_proj")] = value
    return renamed


def test_names_in_memory_of_transformers_5_are_read() -> None:
    shapes = WRITTEN["vit_giant_patch14_dinov2"]["weights"]
    weights = {key: torch.rand(shape) for key, shape in shapes.items()}
    read, expected = (
        to_authors_layout(each) for each in (in_memory_of_version_5(weights), weights)
    )
    assert read.keys() == expected.keys()
    assert all(torch.equal(read[key], expected[key]) for key in expected)


@pytest.mark.usefixtures("shallow")
@pytest.mark.parametrize(
    ("name", "size", "pooling"),
    [
        ("vit_small_patch14_reg4_dinov2", 28, "timm"),
        ("vit_tiny_patch16_dinov3_qkvb", 32, "timm"),
        ("vit_tiny_patch16_dinov3_qkvb", 32, "token"),
    ],
)
def test_exported_folder_starts_a_network_with_same_features(
    pictures: DatasetIndex, tmp_path: Path, name: str, size: int, pooling: str
) -> None:
    backbone = {"name": name, "image_size": size, "stem": "standard", "pooling": pooling}
    spec = resolved(pictures, backbone=backbone)
    network = shake(build_backbone(spec.backbone))
    export_backbone(network, spec, NOTHING_MEASURED, tmp_path)
    folder = export_checkpoint(tmp_path, "transformers")
    assert {file.name for file in folder.iterdir()} == {
        *("config.json", "preprocessor_config.json", "model.safetensors", "README.md")
    }
    start = folder / "model.safetensors"
    recorded = recorded_normalization(start)
    assert recorded is not None
    assert recorded.is_close(spec.backbone.normalization)
    other = build_backbone(spec.backbone.model_copy(update={"pretrained": str(start)})).eval()
    images = torch.from_numpy(images_for(spec))
    with torch.no_grad():
        torch.testing.assert_close(other(images), network(images))
    card = (folder / "README.md").read_text()
    assert "library_name: transformers" in card
    # timm takes the class token of DINOv2, and the mean of DINOv3's patches.
    averaged = "dinov3" in name and pooling == "timm"
    pooled = "tokens[:, 5:].mean(dim=1)" if averaged else "tokens[:, 0]"
    assert f"    return {pooled}\n" in card


def test_networks_without_a_class_in_transformers_are_refused(
    pictures: DatasetIndex, tmp_path: Path
) -> None:
    spec = resolved(pictures, backbone={"name": "test_vit", "image_size": 32})
    export_backbone(build_backbone(spec.backbone), spec, NOTHING_MEASURED, tmp_path)
    with pytest.raises(
        ExportError, match=r"DINOv2 and DINOv3 .*not for test_vit; use the format hf, or onnx"
    ):
        export_checkpoint(tmp_path, "transformers")
    assert not (tmp_path / "transformers").exists()
