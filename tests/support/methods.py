"""Methods on small networks, built from their settings."""

from typing import Any

import torch
from torch import Tensor, nn

from dasl_core.methods import BuildInputs
from dasl_core.spec import OWN_BACKBONE, ResolvedBackbone
from dasl_core.spec.normalization import IMAGENET


def build_inputs(
    network: nn.Module, features: int, *, num_classes: int | None = None, image_size: int = 16
) -> BuildInputs:
    """Return what a method is built from, for a network whose features have this width."""
    network.num_features = features  # type: ignore[assignment]
    sizes: dict[str, Any] = {"image_size": image_size, "stem": "standard", **dict(IMAGENET)}
    return BuildInputs(network, ResolvedBackbone(name=OWN_BACKBONE, **sizes), num_classes)


def backbone_of(name: str, image_size: int, **changes: Any) -> ResolvedBackbone:
    """Return a network with timm's own stem and ImageNet's normalization, with changes."""
    usual = {"name": name, "image_size": image_size, "stem": "standard", **dict(IMAGENET)}
    return ResolvedBackbone.model_validate(usual | changes)


def unequal_coordinates(samples: int, width: int, seed: int = 0) -> Tensor:
    """Embeddings (2, samples, width) in float64, whose coordinates differ in scale, with a mean of 1."""
    generator = torch.Generator().manual_seed(seed)
    scales = torch.rand(width, generator=generator, dtype=torch.float64) * 2
    return torch.randn(2, samples, width, generator=generator, dtype=torch.float64) * scales + 1
