"""Projection heads: networks from features to the embeddings or outputs that a loss compares."""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dasl_core.tensors import full_precision


def projection_head(
    in_features: int, hidden: int, out: int, *, last_batch_norm: bool = False
) -> nn.Sequential:
    """SimCLR's head: Linear, BatchNorm, ReLU, Linear (Chen et al. 2020, section 4.2).

    A layer before a BatchNorm has no bias, which it would remove.

    Args:
        last_batch_norm: end with a BatchNorm that scales but does not shift, as the authors' code.
    """
    head = nn.Sequential(
        nn.Linear(in_features, hidden, bias=False),
        nn.BatchNorm1d(hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, out, bias=not last_batch_norm),
    )
    if last_batch_norm:
        norm = nn.BatchNorm1d(out)
        norm.bias.requires_grad_(False)  # 0
        head.append(norm)
    return head


def deep_head(widths: Sequence[int], *, normalized_output: bool) -> nn.Sequential:
    """A head without biases: Linear, BatchNorm, ReLU for each but the last of `widths[1:]`.

    Args:
        widths: of the features, the hidden layers and the output.
        normalized_output: whether the last Linear is followed by a BatchNorm without weights (MoCo v3)
            or by nothing (VICReg's expander).
    """
    layers: list[nn.Module] = []
    for number, (before, after) in enumerate(pairwise(widths), start=2):
        layers.append(nn.Linear(before, after, bias=False))
        if number < len(widths):
            layers += [nn.BatchNorm1d(after), nn.ReLU(inplace=True)]
        elif normalized_output:
            layers.append(nn.BatchNorm1d(after, affine=False))
    return nn.Sequential(*layers)


class EmbeddingNetwork(nn.Module):
    """A backbone with its embedding head: images (B, C, H, W) to L2-normalized embeddings (B, h)."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, images: Tensor) -> Tensor:
        return F.normalize(full_precision(self.head(self.backbone(images))), dim=-1)


class UnitLinear(nn.Module):
    """A linear layer with weight normalization and its g fixed to 1: all rows have length 1.

    The rows of `weight` may have any length; only their directions count.

    Args:
        learned_lengths: rows start with length 1, and learn `lengths`, the g of weight normalization.
    """

    def __init__(self, in_features: int, out: int, *, learned_lengths: bool = False) -> None:
        super().__init__()
        self.lengths = nn.Parameter(torch.ones(out, 1)) if learned_lengths else None
        self.weight = nn.Parameter(torch.empty(out, in_features))
        nn.init.uniform_(self.weight, -(in_features**-0.5), in_features**-0.5)  # as nn.Linear

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in_features) to (N, out)."""
        rows = F.normalize(self.weight, dim=1)
        return F.linear(x, rows if self.lengths is None else self.lengths * rows)


class DINOHead(nn.Module):
    """DINO's head (Caron et al. 2021, section 3.1 and appendix C).

    Three layers map features to a bottleneck. `last_layer` multiplies its direction with unit rows.

    Args:
        batch_norm: a BatchNorm before each GELU, `use_bn_in_head` of the authors' code. Without it the
            small initial weights map all images to nearly the same direction of the bottleneck.
        norm_last_layer: the rows of `last_layer` keep length 1, as with `norm_last_layer` of that code.
    """

    def __init__(
        self,
        in_features: int,
        hidden: int,
        bottleneck: int,
        out: int,
        *,
        batch_norm: bool = False,
        norm_last_layer: bool = True,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before in (in_features, hidden):
            norm = [nn.BatchNorm1d(hidden)] if batch_norm else []
            layers += [nn.Linear(before, hidden), *norm, nn.GELU()]
        self.mlp = nn.Sequential(*layers, nn.Linear(hidden, bottleneck))
        for layer in self.mlp:
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)
        self.last_layer = UnitLinear(bottleneck, out, learned_lengths=not norm_last_layer)

    def forward(self, features: Tensor) -> Tensor:
        """Compute outputs (N, out) of features (N, in_features)."""
        return self.outputs(self.mlp(features))

    def outputs(self, embeddings: Tensor) -> Tensor:
        """Compute outputs (N, out) of the bottleneck's embeddings (N, bottleneck), never in half precision."""
        # Half precision rounds cosines by 0.004, which moved up to 2 percent of a target at temperature 0.04.
        with torch.autocast(embeddings.device.type, enabled=False):
            outputs: Tensor = self.last_layer(F.normalize(full_precision(embeddings), dim=-1))
        return outputs
