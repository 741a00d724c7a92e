"""Heads: from features to the embeddings, or the outputs, that a loss sees."""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def projection_head(in_features: int, hidden: int, out: int) -> nn.Sequential:
    """SimCLR's head: Linear, BatchNorm, ReLU, Linear (Chen et al. 2020, section 4.2).

    The hidden layer has no bias, since the normalisation takes it away.
    """
    return nn.Sequential(
        nn.Linear(in_features, hidden, bias=False),
        nn.BatchNorm1d(hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, out),
    )


def deep_head(widths: Sequence[int], *, normalised_output: bool) -> nn.Sequential:
    """A head without biases: Linear, BatchNorm, ReLU for each but the last of `widths[1:]`.

    Args:
        widths: of the features, the hidden layers and the output.
        normalised_output: whether the last Linear is followed by a BatchNorm without weights (MoCo v3)
            or by nothing (VICReg's expander).
    """
    layers: list[nn.Module] = []
    for number, (before, after) in enumerate(pairwise(widths), start=2):
        layers.append(nn.Linear(before, after, bias=False))
        if number < len(widths):
            layers += [nn.BatchNorm1d(after), nn.ReLU(inplace=True)]
        elif normalised_output:
            layers.append(nn.BatchNorm1d(after, affine=False))
    return nn.Sequential(*layers)


class UnitLinear(nn.Module):
    """A linear layer whose rows have length 1: weight normalisation with its g fixed to 1.

    The rows of `weight` may have any length; their directions count.
    """

    def __init__(self, in_features: int, out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out, in_features))
        nn.init.uniform_(self.weight, -(in_features**-0.5), in_features**-0.5)  # as nn.Linear

    def forward(self, x: Tensor) -> Tensor:
        """(N, in_features) to (N, out)."""
        return F.linear(x, F.normalize(self.weight, dim=1))


class DINOHead(nn.Module):
    """Three layers to a bottleneck, whose direction `last_layer` compares with its rows
    (Caron et al. 2021, section 3.1 and appendix C).

    Args:
        batch_norm: a BatchNorm before each GELU, `use_bn_in_head` of the authors' code. Without it the
            small weights of the start leave all images nearly one direction of the bottleneck.
    """

    def __init__(
        self, in_features: int, hidden: int, bottleneck: int, out: int, *, batch_norm: bool = False
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before in (in_features, hidden):
            normalise = [nn.BatchNorm1d(hidden)] if batch_norm else []
            layers += [nn.Linear(before, hidden), *normalise, nn.GELU()]
        self.mlp = nn.Sequential(*layers, nn.Linear(hidden, bottleneck))
        for layer in self.mlp:
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)
        self.last_layer = UnitLinear(bottleneck, out)

    def forward(self, features: Tensor) -> Tensor:
        """Outputs (N, out) of features (N, in_features)."""
        return self.outputs(self.mlp(features))

    def outputs(self, embeddings: Tensor) -> Tensor:
        """Outputs (N, out) of what the bottleneck gave, (N, bottleneck)."""
        outputs: Tensor = self.last_layer(F.normalize(embeddings, dim=-1))
        return outputs
