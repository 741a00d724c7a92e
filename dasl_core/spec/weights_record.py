"""Records of a network in the files of its weights, readable without torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dasl_core.spec.backbones import SMALL_STEM_PATCHES, Stem
from dasl_core.spec.fields import LARGEST_IMAGE, MOST_CHANNELS, SMALLEST_IMAGE
from dasl_core.spec.locations import CHECKPOINT_MODEL
from dasl_core.spec.normalization import (
    HUB_CONFIG,
    Normalization,
    describing_files,
    read_description,
    recorded_normalization,
    safetensors_header,
)


class WeightsRecord(NamedTuple):
    """Records in the files of weights; None if missing.

    Attributes:
        normalization: normalization of the weights' training.
        stem: stem of the network.
        image_size: the only image size at which they load. Position embeddings of files are resampled, those of
            checkpoints are not.
        in_channels: the only number of channels at which they load. Files are adapted, checkpoints are not.
    """

    normalization: Normalization | None = None
    stem: Stem | None = None
    image_size: int | None = None
    in_channels: int | None = None


NO_RECORD = WeightsRecord()

# Stem of a ResNet by the kernel size of its first convolution.
FIRST_CONVOLUTION = "conv1.weight"
_STEMS: dict[tuple[int, ...], Stem] = {(3, 3): "small", (7, 7): "standard"}


def stem_from_convolution(shape: Sequence[int]) -> Stem | None:
    """Return the stem of a ResNet by the shape of `FIRST_CONVOLUTION`."""
    return _STEMS.get(tuple(shape[2:]))


def read_record(weights: Path) -> WeightsRecord:
    """Read the records in the files of weights.

    Args:
        weights: a file, or the folder of a checkpoint, as in `backbone.pretrained`.

    Raises:
        ValueError: a file cannot be read; the message names `backbone.pretrained`.
    """
    normalization, stem = recorded_normalization(weights), _stem_in_header(weights)
    for file in describing_files(weights):
        if file.name not in (CHECKPOINT_MODEL, HUB_CONFIG) or not file.is_file():
            continue
        content = read_settings(file)
        arguments = content.get("timm" if file.name == CHECKPOINT_MODEL else "model_args")
        if isinstance(arguments, dict):
            size = arguments.get("img_size")
            if type(size) is not int or not SMALLEST_IMAGE <= size <= LARGEST_IMAGE:
                size = None  # convolutional networks have none
            is_small = size and arguments.get("patch_size") == size // SMALL_STEM_PATCHES
            if stem is None:  # a checkpoint's `stem`: code that adapts a ResNet to small images
                stem = "small" if is_small or content.get("stem") else "standard"
            channels = arguments.get("in_chans")
            if type(channels) is not int or not 1 <= channels <= MOST_CHANNELS:
                channels = None
            if not weights.is_dir():
                return WeightsRecord(normalization, stem)
            return WeightsRecord(normalization, stem, size, channels)
    return WeightsRecord(normalization, stem)


def _stem_in_header(weights: Path) -> Stem | None:
    if weights.suffix != ".safetensors" or not weights.is_file():
        return None
    match safetensors_header(weights).get(FIRST_CONVOLUTION):
        case {"shape": [int(), int(), int(), int()] as shape}:
            return stem_from_convolution(shape)
    return None


def read_settings(file: Path) -> dict[str, Any]:
    """Read a JSON mapping; empty if it is invalid, which reading the normalization reports."""
    try:
        return read_description(file)
    except (ValueError, RecursionError):
        return {}
