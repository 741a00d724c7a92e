"""Generate `dasl_core/spec/backbones.json`: `python -m dasl_core.models.catalog`."""

import json
from pathlib import Path
from typing import Any

import timm
import torch

import dasl_core.spec

# Modules of timm whose models share one class each, so that one stem rule fits all models of a module.
FAMILIES = {"resnet": "resnet", "vision_transformer": "vit"}


def describe(name: str, family: str) -> dict[str, Any]:
    """Describe one timm model as a `BackboneInfo`, without memory for its weights."""
    with torch.device("meta"):
        model = timm.create_model(name, num_classes=0)
    patch = model.patch_embed.patch_size[0] if family == "vit" else None
    return {
        "family": family,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "features": model.num_features,
        "image_size": model.default_cfg["input_size"][-1],
        "patch_size": patch,
    }


def build_catalog() -> dict[str, dict[str, Any]]:
    """Describe every ResNet-like and ViT model of the installed timm, by name."""
    return {
        name: describe(name, family)
        for module, family in FAMILIES.items()
        for name in sorted(timm.list_models(module=module))
    }


if __name__ == "__main__":
    target = Path(dasl_core.spec.__file__).parent / "backbones.json"
    lines = (f"  {json.dumps(n)}: {json.dumps(f)}" for n, f in build_catalog().items())
    target.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
