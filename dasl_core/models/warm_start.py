"""Pretrained weights to start from: a checkpoint of DASL, or a file of timm weights."""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from timm.models import load_state_dict
from torch import Tensor, nn

from dasl_core.manifest import MANIFEST, find_damage
from dasl_core.spec import ResolvedBackbone, recorded_normalization
from dasl_core.spec.locations import (
    CHECKPOINT_MODEL,
    CHECKPOINT_WEIGHTS,
    WEIGHTS_ENDINGS,
    local_path,
)
from dasl_core.spec.normalization import not_a_checkpoint
from dasl_core.spec.resolve.pixels import normalization_problem


def pretrained_path(location: str) -> Path:
    """The file or folder that `backbone.pretrained` names; a ValueError if it is neither a checkpoint nor weights."""
    try:
        # `dasl train` accepts paths relative to the working directory, too.
        path = local_path(location) if "://" in location else Path(location)
    except ValueError as error:
        raise ValueError(f"backbone.pretrained: {location} {error}") from error
    try:
        _check_kind(path)
    except OSError as error:
        raise ValueError(
            f"backbone.pretrained: {path} cannot be read: {error.strerror or error}"
        ) from error
    return path


def _check_kind(path: Path) -> None:
    if path.is_dir():
        if not (path / CHECKPOINT_WEIGHTS).is_file() or not (path / CHECKPOINT_MODEL).is_file():
            raise ValueError(f"backbone.pretrained: {path} {not_a_checkpoint(path)}")
    elif not path.is_file():
        raise ValueError(f"backbone.pretrained: {path} does not exist on this machine")
    elif path.suffix not in WEIGHTS_ENDINGS:
        raise ValueError(
            f"backbone.pretrained: {path} must end in one of {', '.join(WEIGHTS_ENDINGS)}"
        )


def read_weights(file: Path) -> dict[str, Any]:
    """Read a file of weights, by name, without running pickled code; a ValueError if it cannot be read, or has none."""
    try:
        weights: dict[str, Any] = load_state_dict(str(file))
    except Exception as error:  # malformed files raise arbitrary exception types
        is_unnamed = isinstance(error, AttributeError)
        problem = "is not a mapping of names to weights" if is_unnamed else "cannot be read"
        detail = str(error) or type(error).__name__
        if "weights_only" in detail:  # timm and torch advise to run the pickled code
            detail = "it contains pickled code, which is not run; save a state_dict as .safetensors"
        raise ValueError(f"backbone.pretrained: {file} {problem}: {detail}") from error
    return weights


def with_last_norm_of(model: nn.Module, weights: dict[str, Any]) -> dict[str, Any]:
    """Name the last normalization as `model` does, whatever the network of the weights pooled.

    timm calls it `fc_norm` in a ViT that averages its patches, and otherwise mostly `norm`.
    """
    expected = model.state_dict().keys()
    for ours, theirs in (("norm.", "fc_norm."), ("fc_norm.", "norm.")):
        has_ours, has_theirs = (
            [any(name.startswith(each) for name in names) for names in (expected, weights)]
            for each in (ours, theirs)
        )
        if has_ours == [True, False] and has_theirs == [False, True]:
            return {
                ours + name.removeprefix(theirs) if name.startswith(theirs) else name: value
                for name, value in weights.items()
            }
    return weights


def has_same_shapes(weights: dict[str, Any], model: nn.Module) -> bool:
    """Whether the weights have the names and shapes of those of `model`."""
    expected = model.state_dict()
    return weights.keys() == expected.keys() and all(
        isinstance(value, Tensor) and value.shape == expected[name].shape
        for name, value in weights.items()
    )


def check_finite(model: nn.Module, start: Path) -> None:
    """Raise a ValueError unless all weights that were loaded from `start` are finite."""
    for name, value in model.state_dict().items():
        if not bool(value.isfinite().all()):
            raise ValueError(f"backbone.pretrained: {start} holds NaN or infinity in {name}")


def check_normalization(backbone: ResolvedBackbone, start: Path) -> None:
    """Check that the network will get its images as when its weights were trained.

    "auto" was replaced where `start` may not have been readable, so only now the two can be compared.

    Raises:
        ValueError: the files of `start` record another mean or std; the message says what to set.
    """
    recorded = recorded_normalization(start)
    if recorded is not None and (
        problem := normalization_problem(backbone.normalization, recorded)
    ):
        raise ValueError(
            f"{problem}. The job was resolved where the files were not read: with "
            "auto, a new job takes what they record (dasl clone JOB --checkpoint none)"
        )


def load_checkpoint(model: nn.Module, folder: Path, expected: dict[str, Any]) -> None:
    """Load the backbone of a checkpoint.

    Args:
        model: with the stem that the network of the checkpoint has.
        expected: the fields that `model.json` must have: `timm` and `stem`.

    Raises:
        ValueError: the checkpoint is of another network, or damaged.
    """
    try:
        damage = find_damage(folder) if (folder / MANIFEST).is_file() else None
        if damage is not None:
            raise ValueError(damage)
        settings = json.loads((folder / CHECKPOINT_MODEL).read_text(encoding="utf-8"))
        weights = load_file(folder / CHECKPOINT_WEIGHTS)
        if not isinstance(settings, dict):
            raise ValueError(
                f"{CHECKPOINT_MODEL} must hold settings, not {type(settings).__name__}"
            )
    except (
        Exception
    ) as error:  # such as SafetensorError, which is not a ValueError, or RecursionError
        raise ValueError(f"backbone.pretrained: {folder} cannot be read: {error}") from error
    for part, value in expected.items():
        recorded, value = _without_pooling(settings.get(part)), _without_pooling(value)
        if recorded != value:
            raise ValueError(
                f"backbone.pretrained: the checkpoint {folder} has another network: its {part} is "
                f"{recorded}, this job's {value}; set backbone.name, image_size, in_channels and stem as they "
                f"are under spec in its {CHECKPOINT_MODEL}"
            )
    try:
        model.load_state_dict(with_last_norm_of(model, weights))
    except RuntimeError as error:  # a tensor is missing, or has another shape
        raise ValueError(
            f"backbone.pretrained: {folder / CHECKPOINT_WEIGHTS} is damaged: {error}"
        ) from error


def _without_pooling(part: Any) -> Any:
    """The same arguments without the pooling, by which weights differ only in a name: `with_last_norm_of`."""
    if not isinstance(part, dict):
        return part
    return {name: value for name, value in part.items() if name != "global_pool"}
