"""Files of weights that a network cannot load are recognized without torch, and no others."""

import json
import tracemalloc
from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor

from dasl_core.models.transformers_layout import to_transformers_layout
from dasl_core.spec import Backbone
from dasl_core.spec.weights import weights_problem

ENDINGS = (".safetensors", ".pth")


def save(weights: dict[str, Tensor], file: Path) -> Path:
    """Write a file of these names and shapes that takes no space."""
    if file.suffix == ".pth":
        one = torch.zeros(())
        content = {name: one.expand(weight.shape) for name, weight in weights.items()}
        torch.save({"model": content, "epoch": 3}, file)
        return file
    header, end = {}, 0
    for name, weight in weights.items():
        start, end = end, end + 4 * weight.numel()
        header[name] = {"dtype": "F32", "shape": list(weight.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text)
    with file.open("r+b") as stream:
        stream.truncate(8 + len(text) + end)
    return file


def network(name: str) -> dict[str, Tensor]:
    """The weights of a network, without memory for them."""
    with torch.device("meta"):
        weights: dict[str, Tensor] = timm.create_model(name).state_dict()
    return weights


def problem(file: Path, name: str) -> str | None:
    return weights_problem(file, Backbone.model_validate({"name": name}))


@pytest.mark.parametrize("ending", ENDINGS)
def test_smaller_network_is_refused(tmp_path: Path, ending: str) -> None:
    file = save(network("vit_tiny_patch16_224"), tmp_path / f"w{ending}")
    assert problem(file, "vit_tiny_patch16_224") is None
    refusal = problem(file, "vit_base_patch16_224")
    assert refusal is not None
    assert refusal.startswith("is of another network: it has 5,7")


@pytest.mark.parametrize("ending", ENDINGS)
def test_similar_network_is_refused(tmp_path: Path, ending: str) -> None:
    file = save(network("resnet34"), tmp_path / f"w{ending}")
    refusal = problem(file, "resnet50")
    assert refusal is not None
    assert "is of another network: it has " in refusal
    assert " tensors of shape (" in refusal
    assert ", and resnet50 has " in refusal
    assert problem(file, "resnet34") is None


@pytest.mark.parametrize(
    "name",
    [
        "test_resnet",
        "resnet50",
        "convnext_tiny",
        "efficientnet_b0",
        "mobilenetv3_small_100",
        "eva02_tiny_patch14_224",
        "test_vit",
    ],
)
def test_own_weights_are_accepted(tmp_path: Path, name: str) -> None:
    assert problem(save(network(name), tmp_path / "w.safetensors"), name) is None


def test_weights_for_other_images_are_accepted(tmp_path: Path) -> None:
    name = "vit_tiny_patch16_224"
    with torch.device("meta"):
        model = timm.create_model(name, in_chans=1, img_size=32, patch_size=4, num_classes=0)
    assert problem(save(model.state_dict(), tmp_path / "w.pth"), name) is None


@pytest.mark.parametrize("name", ["vit_small_patch14_dinov2", "vit_small_plus_patch16_dinov3"])
def test_layout_of_transformers_is_accepted(tmp_path: Path, name: str) -> None:
    weights = {k: v for k, v in network(name).items() if not k.startswith("head")}
    file = save(to_transformers_layout(weights), tmp_path / "model.safetensors")
    assert problem(file, name) is None


@pytest.mark.parametrize(
    "shape",
    ["[9, 9, 9, 9, 9, 9, 9, 9, 9]", "[[0], 1000000]", '["a", 1000000]', "[-1]", "9", "[1e400]"],
)
def test_impossible_shape_is_not_multiplied(tmp_path: Path, shape: str) -> None:
    header = f'{{"a": {{"dtype": "F32", "shape": {shape}, "data_offsets": [0, 0]}}}}'.encode()
    file = tmp_path / "w.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    tracemalloc.start()
    refusal = problem(file, "resnet18")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert refusal == "is not a safetensors file, or cut off: its header cannot be read"
    assert peak < 500_000
