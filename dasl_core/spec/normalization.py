"""Normalization of images by window, mean and standard deviation, and its records with weights."""

import json
import math
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dasl_core.spec.base import SpecModel, shorten
from dasl_core.spec.fields import EIGHT_BIT, ChannelMeans, ChannelStds, Window
from dasl_core.spec.locations import CHECKPOINT_MODEL, CHECKPOINT_WEIGHTS

# File names of Hugging Face's layout, which timm writes and reads.
HUB_CONFIG, HUB_WEIGHTS = "config.json", ("model.safetensors", "pytorch_model.bin")
# Where transformers writes mean and std, which its `config.json` lacks.
HUB_PROCESSOR = "preprocessor_config.json"
# Metadata key of a safetensors export for its preprocessing, as JSON.
PREPROCESSING = "preprocessing"
# In bytes; larger than any network's. The API reads these files, and JSON takes thirty times the memory.
LARGEST_DESCRIPTION, LARGEST_HEADER = 2**18, 2**21
# Number of files of a folder that are inspected; folders from the hub have about ten.
MOST_ENTRIES = 10_000


class Normalization(SpecModel):
    """Raw values x become (y - mean) / std, with y = (x - low) / (high - low), clamped to [0, 1].

    `mean` and `std` have one number per channel, in units of the window.
    """

    mean: ChannelMeans
    std: ChannelStds
    window: Window = EIGHT_BIT

    def with_channels(self, channels: int) -> "Normalization":
        """Return the normalization for images with this number of channels.

        A different number of channels gets the averages, which fit best when timm sums the weights of RGB for one
        channel.
        """
        if len(self.mean) == channels == len(self.std):
            return self
        mean, std = (round(sum(values) / len(values), 6) for values in (self.mean, self.std))
        return Normalization(mean=(mean,) * channels, std=(std,) * channels, window=self.window)

    def is_close(self, other: "Normalization") -> bool:
        """Whether mean and std are equal up to the rounding in files."""
        return all(
            len(ours) == len(theirs)
            and all(math.isclose(a, b, abs_tol=1e-4) for a, b in zip(ours, theirs, strict=True))
            for ours, theirs in ((self.mean, other.mean), (self.std, other.std))
        )

    def __str__(self) -> str:
        return f"mean {list(self.mean)} and std {list(self.std)}"


# Used by most networks, and by all networks from random weights in DASL.
IMAGENET = Normalization(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


def describing_files(weights: Path) -> Iterator[Path]:
    """Yield the files that may record the normalization of weights. They need not exist.

    Args:
        weights: a file, or the folder of a checkpoint, as in `backbone.pretrained`.
    """
    if weights.is_dir():
        yield weights / CHECKPOINT_MODEL
        return
    if weights.suffix == ".safetensors":
        yield weights
    if weights.name == CHECKPOINT_WEIGHTS:
        yield weights.with_name(CHECKPOINT_MODEL)
    elif weights.name in HUB_WEIGHTS:
        yield weights.with_name(HUB_CONFIG)
        yield weights.with_name(HUB_PROCESSOR)


def recorded_normalization(weights: Path) -> Normalization | None:
    """Return the normalization of the weights' training, if their files record it.

    Checkpoints and exports of DASL record it, and so do timm's `config.json` and transformers'
    `preprocessor_config.json` next to weights from the Hugging Face hub.

    Raises:
        ValueError: a file that may record it cannot be read; the message names `backbone.pretrained`.
    """
    if weights.is_dir() and not (weights / CHECKPOINT_MODEL).is_file():
        raise ValueError(f"backbone.pretrained: {weights} {not_a_checkpoint(weights)}")
    for file in describing_files(weights):
        try:
            recorded = _read(file) if file.is_file() else None
        except Exception as error:  # malformed files raise arbitrary exception types
            problem = str(error) if isinstance(error, ValueError | OSError) else repr(error)
            if isinstance(error, ValidationError):
                problem = "its mean and std are not those of images in [0, 1]"
            raise ValueError(f"backbone.pretrained: {file} cannot be read: {problem}") from error
        if recorded is not None:
            return recorded
    return None


def not_a_checkpoint(folder: Path) -> str:
    """Describe a folder that is not a checkpoint, and which of its files can be loaded."""
    with os.scandir(folder) as entries:
        names = {entry.name for entry in islice(entries, MOST_ENTRIES)}
    missing = [name for name in (CHECKPOINT_WEIGHTS, CHECKPOINT_MODEL) if name not in names]
    problem = f"is not a checkpoint of DASL: it has no {' and no '.join(missing)}"
    named = next((name for name in HUB_WEIGHTS if name in names), None)
    if named is not None:
        return f"{problem}; to load weights from a hub, name their file, {folder / named}"
    if any(name.startswith(HUB_WEIGHTS) for name in names):
        return f"{problem}; weights in several files are not read: save them as one .safetensors"
    return problem


def _read(file: Path) -> Normalization | None:
    if file.suffix == ".safetensors":
        metadata = safetensors_header(file).get("__metadata__", {})
        recorded = _mapping(json.loads(_mapping(metadata).get(PREPROCESSING, "{}")))
    else:
        content = read_description(file)
        if file.name == CHECKPOINT_MODEL:
            if "preprocessing" not in content:
                raise ValueError("it has no preprocessing")
            recorded = _mapping(content["preprocessing"])
            missing = [name for name in ("mean", "std") if name not in recorded]
            if missing:
                raise ValueError(f"its preprocessing has no {missing[0]}")
            return _normalization(recorded)
        if file.name == HUB_PROCESSOR:
            content = {name: content.get(f"image_{name}") for name in ("mean", "std")}
        # Early exports of timm have no section.
        recorded = _mapping(content.get("pretrained_cfg", content))
    return (
        None
        if recorded.get("mean") is None or recorded.get("std") is None
        else _normalization(recorded)
    )


def read_description(file: Path) -> dict[str, Any]:
    """Read a JSON file of settings by name; a ValueError or RecursionError if it is not one, or too large."""
    if file.stat().st_size > LARGEST_DESCRIPTION:
        raise ValueError("it is too large")
    return _mapping(json.loads(file.read_text(encoding="utf-8")))


def _normalization(recorded: dict[str, Any]) -> Normalization:
    # Exports of 8-bit images and other programs record no window.
    window = recorded.get("window", EIGHT_BIT)
    return Normalization(mean=recorded["mean"], std=recorded["std"], window=window)


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"it must hold settings by name, not {shorten(value)}")
    return value


def safetensors_header(file: Path) -> dict[str, Any]:
    """Read the header of a safetensors file: 8 bytes of length, then JSON; a ValueError if it is no such file."""
    with file.open("rb") as stream:
        start = stream.read(8)
        length = int.from_bytes(start, "little")
        if not start:
            raise ValueError("it is empty")
        header = stream.read(length) if length <= LARGEST_HEADER else b""
    try:
        return _mapping(json.loads(header))
    except (ValueError, RecursionError) as error:
        raise ValueError(
            "it is not a safetensors file, or cut off: its header cannot be read"
        ) from error
