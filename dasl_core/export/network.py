"""The exported network: a plain timm model in float32 on the CPU, and its preprocessing."""

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from dasl_core.models.backbone import build_backbone
from dasl_core.spec import OWN_BACKBONE, ResolvedBackbone, ResolvedJobSpec
from dasl_core.spec.fields import EIGHT_BIT
from dasl_core.spec.normalization import PREPROCESSING

# Other runtimes sum in another order; a larger difference means another function.
TOLERANCE = 1e-4


class ExportError(ValueError):
    """A format could not be written, or the written network computes something else."""


def exported_weights(backbone: nn.Module) -> dict[str, Tensor]:
    """Copy the state of the backbone to contiguous float32 tensors on the CPU."""
    return {
        # Copied, because safetensors refuses shared memory, such as tied weights.
        name: tensor.to(
            "cpu", torch.float32 if tensor.is_floating_point() else tensor.dtype, copy=True
        ).contiguous()
        for name, tensor in backbone.state_dict().items()
    }


def exported_network(backbone: ResolvedBackbone, weights: Mapping[str, Tensor]) -> nn.Module:
    """Build the network described by `model.json`, in eval mode and without gradients.

    It is built from scratch, because changes for training (synchronized BatchNorm, precision, memory format,
    device) must not be exported. The global random state does not change.

    Raises:
        ExportError: the weights do not fit the network, or its architecture is unknown.
    """
    if backbone.is_own:
        raise ExportError(
            f"backbone.name is {OWN_BACKBONE!r}: the architecture is not in the checkpoint. Build the network, "
            "load backbone.safetensors, and export it in Python"
        )
    with torch.random.fork_rng(devices=[]):
        network = build_backbone(backbone.model_copy(update={"pretrained": None}))
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise ExportError(f"the weights do not fit {backbone.name}: {error}") from error
    return network.eval().requires_grad_(False)


def copied_network(network: nn.Module) -> nn.Module:
    """Copy a custom network to float32 on the CPU, in eval mode and without gradients."""
    return copy.deepcopy(network).to("cpu", torch.float32).eval().requires_grad_(False)


def random_images(backbone: ResolvedBackbone, count: int) -> Tensor:
    """Draw float32 images (count, C, S, S) at the scale of normalized ones; equal at every call."""
    size = backbone.image_size
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, backbone.in_channels, size, size, generator=generator)


def largest_difference(
    network: nn.Module, other: Callable[[Tensor], Tensor], backbone: ResolvedBackbone
) -> float:
    """Compare another runtime with torch on random images, in batches of one and of three.

    Returns:
        The largest absolute difference of a feature, divided by the largest feature if that
        is above 1.

    Raises:
        ExportError: it is above `TOLERANCE`, or not a number.
    """
    worst = 0.0
    for count in (1, 3):
        images = random_images(backbone, count)
        with torch.no_grad():
            expected = network(images)
        scale = expected.abs().max().clamp(min=1)
        difference = float((other(images) - expected).abs().max() / scale)
        if not difference <= TOLERANCE:
            raise ExportError(
                f"it differs from torch by {difference:.3g} on {count} random images, "
                f"more than {TOLERANCE:g}"
            )
        worst = max(worst, difference)
    return worst


def preprocessing(spec: ResolvedJobSpec) -> dict[str, Any]:
    """Describe the preprocessing of images, which exported networks do not include, JSON-ready."""
    backbone, crop_pct = spec.backbone, spec.evaluate.crop_pct
    # Not needed for 8-bit images, which readers map to [0, 1].
    window = {"type": backbone.pixel_type, "window": list(backbone.window)}
    if backbone.window == EIGHT_BIT:
        window = {}
    return {
        "image_size": backbone.image_size,
        "channels": backbone.in_channels,
        "crop": "largest central square" if crop_pct == 1 else "central square",
        "crop_pct": crop_pct,
        "interpolation": "bilinear",
        **window,
        "mean": list(backbone.mean),
        "std": list(backbone.std),
    }


def save_weights(weights: Mapping[str, Tensor], spec: ResolvedJobSpec, path: Path) -> None:
    """Write a safetensors file with the preprocessing in its metadata, so it survives a move.

    Equal weights give equal files.
    """
    metadata = {"format": "pt", PREPROCESSING: json.dumps(preprocessing(spec))}
    save_file(dict(weights), path, metadata=metadata)
    with path.open("r+b") as file:  # safetensors writes metadata in random order
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header["__metadata__"] = metadata
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        assert len(text) <= length, "only the order differs"
        file.seek(8)
        file.write(text.ljust(length))
