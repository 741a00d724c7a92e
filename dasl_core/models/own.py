"""Check of a backbone that the user passes instead of naming one of timm's."""

import torch
from torch import Tensor, nn

from dasl_core.distributed import world_size
from dasl_core.models.backbone import feature_width
from dasl_core.spec import OWN_BACKBONE, ResolvedBackbone


def check_own_backbone(network: nn.Module | None, backbone: ResolvedBackbone) -> None:
    """Check that a network is given if, and only if, the settings expect it, and that it returns features.

    A network without `num_features` gets it: the width of what it returns.

    Raises:
        ValueError: it does not.
    """
    if network is None and backbone.is_own:
        raise ValueError(
            f"backbone.name is {OWN_BACKBONE!r}: pass the network, such as pretrain(..., backbone=network)"
        )
    if network is None:
        return
    if not backbone.is_own:
        raise ValueError(
            f"backbone.name: must be {OWN_BACKBONE!r} for a network that is passed; given {backbone.name!r}"
        )
    for name, value in network.state_dict().items():
        if not isinstance(value, Tensor):
            raise ValueError(
                f"backbone: {name} of its state is no tensor, so no file could hold it"
            )
    features = _features_of_zeros(network, backbone)
    if features.ndim != 2 or len(features) != 2:
        raise ValueError(
            "backbone must map images (B, C, H, W) to features (B, F); images of shape "
            f"{_shape(backbone)} gave {tuple(features.shape)}"
        )
    width = features.shape[1]
    if not hasattr(network, "num_features"):
        network.num_features = width  # type: ignore[assignment]
    if feature_width(network) != width:
        raise ValueError(
            f"backbone.num_features must be the width of the features, {width}; given "
            f"{feature_width(network)}"
        )
    # DDP waits for the gradient of every weight that learns.
    if world_size() > 1 and (unused := _unused_weights(network, features)):
        raise ValueError(
            f"backbone: the features do not depend on {', '.join(unused)}; on several ranks, remove such "
            "weights or call requires_grad_(False) on them"
        )


def _features_of_zeros(network: nn.Module, backbone: ResolvedBackbone) -> Tensor:
    weight = next(network.parameters(), torch.zeros(()))
    images = torch.zeros(_shape(backbone), dtype=weight.dtype, device=weight.device)
    was_training = network.training
    try:
        features: Tensor = network.eval()(images)
    finally:
        network.train(was_training)
    return features


def _unused_weights(network: nn.Module, features: Tensor) -> list[str]:
    """Names of the weights that learn, but on which the features do not depend."""
    learning = {name: w for name, w in network.named_parameters() if w.requires_grad}
    if not features.requires_grad:
        return list(learning)
    gradients = torch.autograd.grad(features.sum(), list(learning.values()), allow_unused=True)
    return [name for name, gradient in zip(learning, gradients, strict=True) if gradient is None]


def _shape(backbone: ResolvedBackbone) -> tuple[int, int, int, int]:
    return (2, backbone.in_channels, backbone.image_size, backbone.image_size)
