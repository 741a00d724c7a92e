"""The exported network in a checkpoint: weights for timm, ONNX, the head, and their description."""

import json
import logging
import math
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dasl_core.export.card import model_card
from dasl_core.export.network import (
    ExportError,
    copied_network,
    exported_network,
    exported_weights,
    preprocessing,
    save_weights,
)
from dasl_core.export.onnx_file import write_onnx
from dasl_core.installed import installed_version
from dasl_core.manifest import MANIFEST, find_damage
from dasl_core.models.backbone import feature_width, stem_lines, timm_arguments
from dasl_core.spec import ResolvedJobSpec, versions
from dasl_core.spec.locations import CHECKPOINT_MODEL, CHECKPOINT_WEIGHTS
from dasl_core.spec.versions import UnreadableSpec

WEIGHTS, MODEL = CHECKPOINT_WEIGHTS, CHECKPOINT_MODEL
METRICS, CARD = "metrics.json", "README.md"
HEAD = "head.safetensors"
ONNX = "backbone.onnx"

logger = logging.getLogger(__name__)


def export_backbone(
    backbone: nn.Module,
    spec: ResolvedJobSpec,
    metrics: dict[str, Any],
    folder: Path,
    *,
    head: nn.Module | None = None,
    onnx: bool = False,
) -> str | None:
    """Write weights, `model.json`, `metrics.json` and the model card into `folder`.

    Args:
        backbone: from `build_backbone`, or a custom network; saved in float32.
        metrics: step, epoch, evaluations and losses; JSON-ready. `metrics["data"]` is optional: the
            facts of the data set, `images`, `classes` (or None), `train_images`,
            `held_out_images`.
        head: the embedding head of a supervised method, of `torch.nn` layers; saved in float32.
        onnx: also write `backbone.onnx`, which takes some seconds.

    Returns:
        Why `backbone.onnx` could not be written; None on success or without a request. It is not raised,
        because the weights are complete and can be converted later.
    """
    weights = exported_weights(backbone)
    save_weights(weights, spec, folder / WEIGHTS)
    own = spec.backbone.is_own
    about_onnx = _try_onnx(backbone, weights, spec, folder) if onnx else None
    model = {
        "timm": None if own else timm_arguments(spec.backbone),
        "stem": stem_lines(spec.backbone),
        "num_features": feature_width(backbone) if own else spec.backbone.info.features,
        "preprocessing": preprocessing(spec),
        "head": None if head is None else write_head(head, folder),
        "onnx": about_onnx,
        "versions": {
            "dasl": installed_version("dasl") or "not installed",
            "timm": timm.__version__,
            "torch": torch.__version__,
        },
        "spec": spec.model_dump(mode="json"),
        **versions.version_entry(),
    }
    _write_json(folder / MODEL, model)
    _write_json(folder / METRICS, metrics)
    (folder / CARD).write_text(model_card(spec, model, metrics), encoding="utf-8")
    return about_onnx.get("error") if about_onnx is not None else None


def write_head(head: nn.Module, folder: Path) -> dict[str, Any]:
    """Write the weights of the head in float32, and return its description for `model.json`."""
    save_file(exported_weights(head), folder / HEAD, metadata={"format": "pt"})
    # Code that builds it with torch alone.
    return {"file": HEAD, "lines": [f"head = {constructor(head)}"], "normalized": True}


def constructor(layer: nn.Module) -> str:
    """Return the Python expression that builds a layer of `torch.nn`, or a sequence of them."""
    if isinstance(layer, nn.Sequential):
        return f"torch.nn.Sequential({', '.join(constructor(child) for child in layer)})"
    # Synchronized layers have other classes.
    name = "BatchNorm1d" if isinstance(layer, _BatchNorm) else type(layer).__name__
    return f"torch.nn.{name}({layer.extra_repr()})"


def read_checkpoint(
    folder: Path,
) -> tuple[ResolvedJobSpec, dict[str, Any], dict[str, Any], dict[str, Tensor]]:
    """Read an exported backbone: the spec, `model.json`, `metrics.json` and the weights.

    No code from the folder is run: the lines under `stem` are only displayed.

    Raises:
        ExportError: `folder` is not a checkpoint, is damaged, or was written by another version.
    """
    if missing := [name for name in (WEIGHTS, MODEL, METRICS) if not (folder / name).is_file()]:
        raise ExportError(f"{folder} is not the folder of a checkpoint: {missing[0]} is missing")
    try:
        damage = find_damage(folder) if (folder / MANIFEST).is_file() else None
        if damage is not None:
            raise ValueError(damage)
        model = json.loads((folder / MODEL).read_text(encoding="utf-8"))
        metrics = json.loads((folder / METRICS).read_text(encoding="utf-8"))
        spec = versions.load(model["spec"], versions.read_version(model))
        weights = load_file(folder / WEIGHTS)
        if not isinstance(metrics, dict):
            raise ValueError(f"{METRICS} must contain a mapping")
        for name, tensor in weights.items():
            if not bool(tensor.isfinite().all()):
                raise ValueError(f"{WEIGHTS} holds NaN or infinity in {name}")
    except UnreadableSpec as error:
        raise ExportError(f"{folder / MODEL}: {error}") from error
    except Exception as error:  # such as SafetensorError, which is not a ValueError
        raise ExportError(f"{folder} is not a readable checkpoint: {error!r}") from error
    return spec, model, metrics, weights


def _try_onnx(
    backbone: nn.Module, weights: dict[str, Tensor], spec: ResolvedJobSpec, folder: Path
) -> dict[str, Any]:
    try:
        own = spec.backbone.is_own
        network = copied_network(backbone) if own else exported_network(spec.backbone, weights)
        return write_onnx(network, spec, folder / ONNX)
    except Exception as error:  # an exporter's error must not lose the weights
        logger.warning("no %s was written", ONNX, exc_info=True)
        for file in folder.glob(f"{ONNX}*"):  # large weights are in a second file
            file.unlink()
        return {"error": f"{ONNX} was not written: {error}"}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(finite(content), indent=2) + "\n", encoding="utf-8")


def finite(value: Any) -> Any:
    """Replace NaN and infinities, which JSON lacks, by null."""
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
