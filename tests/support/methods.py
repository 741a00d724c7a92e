"""Methods on small networks, built from their settings."""

from typing import Any

from torch import nn

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
