"""The embedding head of a supervised method: its weights, and code that builds it with torch alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dasl_core.export.network import exported_weights

HEAD = "head.safetensors"


def write_head(head: nn.Module, folder: Path) -> dict[str, Any]:
    """Write the weights of the head in float32, and return its description for `model.json`."""
    save_file(exported_weights(head), folder / HEAD, metadata={"format": "pt"})
    return {"file": HEAD, "lines": [f"head = {constructor(head)}"], "normalized": True}


def constructor(layer: nn.Module) -> str:
    """Return the Python expression that builds a layer of `torch.nn`, or a sequence of them."""
    if isinstance(layer, nn.Sequential):
        return f"torch.nn.Sequential({', '.join(constructor(child) for child in layer)})"
    # Synchronized layers have other classes.
    name = "BatchNorm1d" if isinstance(layer, _BatchNorm) else type(layer).__name__
    return f"torch.nn.{name}({layer.extra_repr()})"
