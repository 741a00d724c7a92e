"""The network as it is exported: timm's own, in float32 on the CPU, and what its images are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dasl_core.data.augment import statistics
from dasl_core.models.backbone import build_backbone
from dasl_core.spec import ResolvedBackbone

# Another runtime adds up in another order; more than this is another function.
TOLERANCE = 1e-4


class ExportError(ValueError):
    """A format could not be written, or what was written computes something else."""


def exported_weights(backbone: nn.Module) -> dict[str, Tensor]:
    """Its state, in float32 on the CPU, each tensor with memory of its own."""
    return {
        name: (tensor.float() if tensor.is_floating_point() else tensor).cpu().contiguous()
        for name, tensor in backbone.state_dict().items()
    }


def exported_network(backbone: ResolvedBackbone, weights: Mapping[str, Tensor]) -> nn.Module:
    """The network that a reader of `model.json` builds, in eval mode and without gradients.

    It is built anew, so that what training made of its own (synchronised batch statistics,
    precision, memory format, device) is no part of any format. The global random state stays.

    Raises:
        ExportError: the weights are not this network's.
    """
    with torch.random.fork_rng(devices=[]):
        network = build_backbone(backbone.model_copy(update={"pretrained": None}))
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise ExportError(f"the weights do not fit {backbone.name}: {error}") from error
    return network.eval().requires_grad_(False)


def random_images(backbone: ResolvedBackbone, count: int) -> Tensor:
    """(count, C, S, S) float32 of the scale of normalised images; the same at every call."""
    size = backbone.image_size
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, backbone.in_channels, size, size, generator=generator)


def largest_difference(
    network: nn.Module, other: Callable[[Tensor], Tensor], backbone: ResolvedBackbone
) -> float:
    """How far another runtime is from torch on random images, batches of one and of three.

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


def preprocessing(backbone: ResolvedBackbone) -> dict[str, Any]:
    """What the network's images are; JSON-ready. It is no part of any exported network."""
    mean, std = statistics(backbone.in_channels)
    return {
        "image_size": backbone.image_size,
        "channels": backbone.in_channels,
        "crop": "largest central square",
        "interpolation": "bilinear",
        "mean": list(mean),
        "std": list(std),
    }
