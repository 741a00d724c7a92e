"""Weights to start from: a checkpoint of ours, or a file of timm weights."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from dasl_core.spec.locations import local_path

# What `dasl_core.export` writes.
WEIGHTS, MODEL = "backbone.safetensors", "model.json"
TIMM_ENDINGS = (".safetensors", ".pth", ".pt", ".bin")


def pretrained_path(location: str) -> Path:
    """The file or folder that `backbone.pretrained` names.

    Raises:
        ValueError: it does not exist, or is neither a checkpoint of ours nor a file of weights.
    """
    try:
        # Without a service a path from where `dasl train` runs will do, too.
        path = local_path(location) if "://" in location else Path(location)
    except ValueError as error:
        raise ValueError(f"backbone.pretrained: {location} {error}") from error
    if path.is_dir():
        if not (path / WEIGHTS).is_file() or not (path / MODEL).is_file():
            raise ValueError(
                f"backbone.pretrained: the folder {path} is no checkpoint: it has no {WEIGHTS} "
                f"and {MODEL}"
            )
    elif not path.is_file():
        raise ValueError(f"backbone.pretrained: there is no file or folder {path} here")
    elif path.suffix not in TIMM_ENDINGS:
        raise ValueError(
            f"backbone.pretrained: {path} must end in one of {', '.join(TIMM_ENDINGS)}"
        )
    return path


def load_checkpoint(model: nn.Module, folder: Path, own: dict[str, Any]) -> None:
    """Load the backbone of one of our checkpoints.

    Args:
        model: with its stem as the checkpoint's was.
        own: what `model.json` must say of the network: `timm` and `stem`.

    Raises:
        ValueError: the checkpoint is of another network, or damaged.
    """
    try:
        theirs = json.loads((folder / MODEL).read_text(encoding="utf-8"))
        weights = load_file(folder / WEIGHTS)
    except (ValueError, SafetensorError) as error:
        raise ValueError(f"backbone.pretrained: {folder} cannot be read: {error}") from error
    for part, value in own.items():
        if theirs.get(part) != value:
            raise ValueError(
                f"backbone.pretrained: the checkpoint {folder} is of another network: its {part} is "
                f"{theirs.get(part)}, this job's {value}"
            )
    model.load_state_dict(weights)
