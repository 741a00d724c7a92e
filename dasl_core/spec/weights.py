"""Check of initial weights without torch. Refuses only weights that certainly cannot be loaded."""

import math
import zipfile
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

from dasl_core.spec.backbone import Backbone
from dasl_core.spec.backbones import BACKBONES
from dasl_core.spec.locations import CHECKPOINT_MODEL, CHECKPOINT_WEIGHTS
from dasl_core.spec.normalization import (
    HUB_CONFIG,
    HUB_WEIGHTS,
    not_a_checkpoint,
    safetensors_header,
)
from dasl_core.spec.pickled_shapes import (
    LARGEST_NUMBER,
    MOST_DIMENSIONS,
    PickledCode,
    Shape,
    pickled_shapes,
)
from dasl_core.spec.weights_record import FIRST_CONVOLUTION, read_settings, stem_from_convolution

# Networks that timm adapts to each other differ in positions and patches: a few percent of the parameters.
ALIKE = 1.4
# A file has all parameters of its network, but positions and patches may be smaller.
FEWEST = 0.5

LFS = "is a pointer of Git LFS, not the weights: run `git lfs pull`"


def weights_problem(weights: Path, backbone: Backbone) -> str | None:
    """Describe why weights cannot be loaded into a backbone; None: they may, or only workers can read them.

    Args:
        weights: a file, or the folder of a checkpoint, as in `backbone.pretrained`.
    """
    try:
        if not weights.is_dir():
            return _hub_problem(weights, backbone) or _file_problem(weights, backbone)
        if not all((weights / name).is_file() for name in (CHECKPOINT_MODEL, CHECKPOINT_WEIGHTS)):
            return not_a_checkpoint(weights)
        return _checkpoint_problem(weights, backbone) or _file_problem(
            weights / CHECKPOINT_WEIGHTS, backbone
        )
    except PermissionError:
        return None
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"


def stem_problem(first: Shape, backbone: Backbone) -> str | None:
    """Describe why a first convolution of this shape cannot be loaded, if so; ViT patches are resampled."""
    stem = stem_from_convolution(first)
    if backbone.info.family != "resnet" or stem is None or backbone.stem in ("auto", stem):
        return None
    return (
        f"holds weights for the {stem} stem of {backbone.name}, and backbone.stem is {backbone.stem}; set "
        f"backbone.stem: {stem}"
    )


def _file_problem(file: Path, backbone: Backbone) -> str | None:
    if file.suffix == ".safetensors":
        return _safetensors_problem(file, backbone)
    if _is_lfs_pointer(file):
        return LFS
    with file.open("rb") as stream:
        start = stream.read(2)
    if start.startswith(b"PK") and not zipfile.is_zipfile(file):
        return "is cut off: its end is missing"
    # Older versions of torch wrote a bare pickle. The first versions' tar archives cannot be read without their code.
    if start.startswith((b"PK", b"\x80")):
        try:
            shapes = pickled_shapes(file)
        except PickledCode as code:
            return (
                f"contains pickled code, {str(code)!r}, which is not run: save a state_dict alone, best as "
                ".safetensors"
            )
        return None if shapes is None else _shapes_problem(shapes, backbone)
    return "is empty" if not start else "is not a file that torch.save writes"


def _safetensors_problem(file: Path, backbone: Backbone) -> str | None:
    if _is_lfs_pointer(file):
        return LFS
    try:
        tensors = safetensors_header(file)
        tensors.pop("__metadata__", None)
        end = max((each["data_offsets"][1] for each in tensors.values()), default=0)
        shapes = {name: _shape(each["shape"]) for name, each in tensors.items()}
        if not 0 <= end < LARGEST_NUMBER:
            raise ValueError("its size is impossible")
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        return "is not a safetensors file, or cut off: its header cannot be read"
    with file.open("rb") as stream:
        expected = 8 + int.from_bytes(stream.read(8), "little") + end
    if (size := file.stat().st_size) != expected:
        return f"is damaged: it has {size:,} bytes, and its header names {expected:,}"
    return stem_problem(shapes.get(FIRST_CONVOLUTION, ()), backbone) or _shapes_problem(
        shapes.values(), backbone
    )


def _shape(sizes: Any) -> Shape:
    """Return a shape from a header, small enough to compute its product; a ValueError if it is not a tensor's."""
    if not isinstance(sizes, list) or len(sizes) > MOST_DIMENSIONS:
        raise ValueError("it is not a shape")
    if not all(type(size) is int and 0 <= size < LARGEST_NUMBER for size in sizes):
        raise ValueError("its sizes are impossible")
    return tuple(sizes)


def _shapes_problem(shapes: Collection[Shape], backbone: Backbone) -> str | None:
    """Compare the shapes of all tensors in a file with those of the network."""
    numbers, parameters = sum(map(math.prod, shapes)), backbone.info.parameters
    if numbers < FEWEST * parameters:
        return (
            f"is of another network: it has {numbers:,} numbers, and {backbone.name} {parameters:,} "
            "parameters"
        )
    found = Counter(map(_without_ones, shapes))
    for shape, count in backbone.info.weights:
        if (has := found[_without_ones(shape)]) < count:
            return (
                f"is of another network: it has {has or 'no'} tensors of shape {shape}, and {backbone.name} "
                f"has {count}"
            )
    return None


def _without_ones(shape: Shape) -> Shape:
    """Remove dimensions of size 1, in which a linear layer and a 1x1 convolution differ."""
    return tuple(size for size in shape if size != 1)


def _is_lfs_pointer(file: Path) -> bool:
    with file.open("rb") as stream:
        return stream.read(64).startswith(b"version https://git-lfs")


def _checkpoint_problem(folder: Path, backbone: Backbone) -> str | None:
    arguments = read_settings(folder / CHECKPOINT_MODEL).get("timm")
    if not isinstance(arguments, dict):
        return None
    expected = {"model_name": backbone.name, "in_chans": backbone.in_channels}
    for name, value in expected.items():
        if name in arguments and value not in ("auto", arguments[name]):
            return f"is a checkpoint of another network: its {name} is {arguments[name]}, this job's {value}"
    return None


def _hub_problem(weights: Path, backbone: Backbone) -> str | None:
    """Compare the architecture that timm's `config.json` names with the backbone."""
    config = weights.with_name(HUB_CONFIG)
    if weights.name not in HUB_WEIGHTS or not config.is_file():
        return None
    name = read_settings(config).get("architecture")
    known = BACKBONES.get(name) if isinstance(name, str) else None
    if known is None:
        return None
    own = backbone.info
    ratio = known.parameters / own.parameters
    if known.features != own.features or not 1 / ALIKE < ratio < ALIKE:
        return f"holds the weights of {name}, and backbone.name is {backbone.name}"
    return None
