"""Hugging Face's folder layout as used by timm."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from dasl_core.export.card import hub_card
from dasl_core.export.network import ExportError, exported_network, preprocessing, save_weights
from dasl_core.models.backbone import stem_lines, timm_arguments
from dasl_core.spec import ResolvedJobSpec

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"


def write_hub_folder(
    weights: Mapping[str, Tensor],
    spec: ResolvedJobSpec,
    model: dict[str, Any],
    metrics: dict[str, Any],
    folder: Path,
) -> None:
    """Write a folder for `timm.create_model("local-dir:FOLDER", pretrained=True)`, with a model card.

    `local-dir:` reads safetensors from timm 1.0.26 on, `hf-hub:` in every version.

    Args:
        weights: weights of the backbone under timm's names; like the others from `read_checkpoint`.
        folder: created if it does not exist.

    Raises:
        ExportError: `model` or `metrics` are damaged, or the backbone is a ResNet with the stem for
            small images. timm's ResNet has no arguments for stride 1 and no pooling, and a deep stem would load
            without an error and compute other features.
    """
    if stem_lines(spec.backbone):
        raise ExportError(
            f"{spec.backbone.name} has the stem for small images (backbone.stem: small), which no "
            "argument of timm's ResNet can say, so this folder would load as another network; use "
            "backbone.safetensors with the lines in README.md, or the format onnx"
        )
    configs = {CONFIG: hub_config(weights, spec)}
    write_folder(folder, configs, weights, spec, lambda: hub_card(spec, model, metrics))


def write_folder(
    folder: Path,
    configs: Mapping[str, dict[str, Any]],
    weights: Mapping[str, Tensor],
    spec: ResolvedJobSpec,
    card: Callable[[], str],
) -> None:
    """Write a folder in a layout of Hugging Face.

    Args:
        configs: JSON files by name.
        weights: under the names of the layout.
        card: writes the model card from the descriptions of the checkpoint.

    Raises:
        ExportError: these descriptions are damaged.
    """
    try:
        text = card()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ExportError(
            f"the checkpoint's model.json or metrics.json is damaged: no model card can be written from "
            f"them ({error!r})"
        ) from error
    folder.mkdir(parents=True, exist_ok=True)
    for name, config in configs.items():
        (folder / name).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_weights(weights, spec, folder / WEIGHTS)
    (folder / CARD).write_text(text, encoding="utf-8")


def hub_config(weights: Mapping[str, Tensor], spec: ResolvedJobSpec) -> dict[str, Any]:
    """Build the content of timm's `config.json`: the architecture and the preprocessing."""
    network = exported_network(spec.backbone, weights)
    facts, images = network.pretrained_cfg, preprocessing(spec)
    assert isinstance(facts, dict), "timm keeps its models' configuration"
    arguments = timm_arguments(spec.backbone)
    outside = {"model_name", "pretrained", "num_classes"}
    size = images["image_size"]
    return {
        "architecture": arguments["model_name"],
        "num_classes": 0,
        "num_features": spec.backbone.info.features,
        "model_args": {k: v for k, v in arguments.items() if k not in outside},
        "pretrained_cfg": {
            "num_classes": 0,
            "input_size": [images["channels"], size, size],
            # A ViT has one position embedding per patch; a ResNet takes any size.
            "fixed_input_size": spec.backbone.info.sizes != "any",
            "interpolation": images["interpolation"],
            "crop_pct": images["crop_pct"],
            "crop_mode": "center",
            "mean": images["mean"],
            "std": images["std"],
            "pool_size": None,
            "first_conv": facts["first_conv"],
            "classifier": facts["classifier"],
        },
    }
