"""How MoCo v3's code starts a ViT: fixed sine-cosine positions, and initial weights of its own."""

import math

import torch
from torch import Tensor, nn


def fix_sincos_positions(vit: nn.Module) -> None:
    """Replace the position embeddings of a timm ViT by fixed ones (Chen et al. 2021, section 4.1).

    Those of tokens that are no patches, such as the class token, are 0.

    Raises:
        ValueError: the ViT has no learned position embedding, or its width is not a multiple of 4.
    """
    positions = getattr(vit, "pos_embed", None)
    if not isinstance(positions, nn.Parameter) or positions.ndim != 3 or positions.shape[2] % 4:
        raise ValueError(
            "method.positions: sincos replaces a position embedding for each patch, with a width "
            "that is a multiple of 4, which this backbone does not have"
        )
    grid = vit.get_submodule("patch_embed").grid_size
    assert isinstance(grid, tuple), "timm's patch embeddings know their grid"
    height, width = grid
    patches = sincos_positions(height, width, positions.shape[2])
    with torch.no_grad():
        positions.zero_()
        positions[0, -len(patches) :] = patches
    positions.requires_grad_(False)


def sincos_positions(height: int, width: int, channels: int) -> Tensor:
    """Compute embeddings (height * width, channels): sine and cosine of the row, then of the column.

    The rows of patches come one after the other, as a ViT flattens them. Frequencies fall from 1 to
    nearly 1/10,000, as in "Attention Is All You Need".
    """
    omega = 10_000 ** -(torch.arange(channels // 4) / (channels // 4))
    row, column = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    angles = [place.flatten().unsqueeze(1) * omega for place in (row, column)]
    return torch.cat([wave(angle) for angle in angles for wave in (torch.sin, torch.cos)], dim=1)


@torch.no_grad()
def initialize_as_moco_v3(vit: nn.Module) -> None:
    """Draw a timm ViT's weights as MoCo v3's code does: by Xavier's rule, without biases.

    Queries, keys and values count as three layers, and the patch projection as a linear layer.
    """
    for name, layer in vit.named_modules():
        if isinstance(layer, nn.Linear):
            outputs = layer.out_features // 3 if name.endswith("qkv") else layer.out_features
            _xavier_uniform(layer, layer.in_features, outputs)
    projection = vit.get_submodule("patch_embed.proj")
    assert isinstance(projection, nn.Conv2d), "timm projects patches by a convolution"
    _xavier_uniform(projection, projection.weight[0].numel(), projection.out_channels)
    token = getattr(vit, "cls_token", None)
    if isinstance(token, nn.Parameter):
        nn.init.normal_(token, std=1e-6)


def _xavier_uniform(layer: nn.Linear | nn.Conv2d, inputs: int, outputs: int) -> None:
    limit = math.sqrt(6 / (inputs + outputs))
    nn.init.uniform_(layer.weight, -limit, limit)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
