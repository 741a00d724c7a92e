"""Files of weights that a network cannot load are recognized without torch, and no others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor

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
