"""Frozen first layers of a backbone."""

from timm.models import group_parameters
from torch import nn


def freeze_first_blocks(backbone: nn.Module, count: int) -> None:
    """Let the stem and the first `count` blocks of a timm model keep their weights, in place.

    Positions, class and register tokens belong to the stem, as in timm's layer-wise decay.

    Raises:
        ValueError: no block would be left to learn.
    """
    layers = _layers(backbone)
    blocks = max(layers.values())
    if count >= blocks:
        raise ValueError(
            f"backbone.freeze_blocks: {count} leaves nothing of the backbone to learn; set at most {blocks - 1}"
        )
    for name, parameter in backbone.named_parameters():
        if layers[name] <= count:
            parameter.requires_grad_(False)


def count_blocks(backbone: nn.Module) -> int:
    """Return how many blocks a timm model has after its stem; its last normalization may count as one."""
    return max(_layers(backbone).values())


def _layers(backbone: nn.Module) -> dict[str, int]:
    """Number the parameters of a timm model from its stem, whose number is 0, to its last block."""
    matcher = backbone.group_matcher(coarse=False)  # type: ignore[operator]
    return {n: int(i) for n, i in group_parameters(backbone, matcher, reverse=True).items()}
