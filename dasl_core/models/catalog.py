"""Generate `dasl_core/spec/backbones.json`: `python -m dasl_core.models.catalog`."""

import json
from pathlib import Path
from typing import Any

import timm
import torch

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
        "normalizations": _normalizations(name),
    }


def _normalizations(name: str) -> list[dict[str, Any]]:
    """List the distinct means and standard deviations of a model's published weights."""
    tags: dict[tuple[tuple[float, ...], tuple[float, ...]], list[str]] = {}
    # The default weights are found by the name without a tag.
    for full in (name, *timm.list_models(f"{name}.*", pretrained=True)):
        published = timm.get_pretrained_cfg(full)
        if published is not None and published.has_weights:
            known = tags.setdefault((tuple(published.mean), tuple(published.std)), [])
            known += [published.tag] if published.tag not in known else []
    return [{"mean": mean, "std": std, "weights": known} for (mean, std), known in tags.items()]


def build_catalog() -> dict[str, dict[str, Any]]:
    """Describe every ResNet-like and ViT model of the installed timm, by name."""
    return {
        name: describe(name, family)
        for module, family in FAMILIES.items()
        for name in sorted(timm.list_models(module=module))
    }


if __name__ == "__main__":
    # Found without importing `dasl_core.spec`, which could not read a file that lacks a new field.
    target = Path(__file__).parents[1] / "spec" / "backbones.json"
    lines = (f"  {json.dumps(n)}: {json.dumps(f)}" for n, f in build_catalog().items())
    target.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
