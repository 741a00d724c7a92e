"""Frequent parameter shapes of a timm network, by which a file of its weights is recognized."""

import re
from collections import Counter
from collections.abc import Mapping
from math import prod

from torch import Tensor

MOST = 3
# Queries, keys and values are one tensor or several; positions, class tokens and the patch projection
# follow the image and patch size. "proj": of patches, of attention and of gates.
_VARIES = re.compile(
    r"attn|attention|qkv|pos|token|patch_embed|stem|proj|(^|\.)(q|k|v|kv|w[qkv])(\.|$)"
)


def frequent_shapes(
    weights: Mapping[str, Tensor], *, batch_norm: bool
) -> list[tuple[tuple[int, ...], int]]:
    """Return the most frequent shapes of a timm network's parameters, and how many have each.

    Any file from which timm loads the network, also in the layout of its authors, has at least as many.
    One-dimensional parameters and those that other layouts split, fuse or reshape are left out.

    Args:
        weights: parameters of the network without classifier, by name.
        batch_norm: whether it has BatchNorm layers.
    """
    counts = Counter(
        tuple(weight.shape)
        for name, weight in weights.items()
        if sum(size > 1 for size in weight.shape) > 1
        and not _VARIES.search(name)
        and not _may_be_reshaped(name, weight, batch_norm=batch_norm)
        and not _is_packed(name, weight, weights)
    )
    # A single tensor may be of a part that files leave out, such as a pooling layer.
    several = [(shape, count) for shape, count in counts.items() if count > 1]
    several.sort(key=lambda entry: (-entry[1], -prod(entry[0]), entry[0]))
    return several[:MOST]


def _may_be_reshaped(name: str, weight: Tensor, *, batch_norm: bool) -> bool:
    """Whether a 1x1 convolution may be a linear layer elsewhere, as in ConvNeXt and MetaFormer."""
    return weight.shape[2:] == (1, 1) and ("mlp" in name or not batch_norm)


def _is_packed(name: str, weight: Tensor, weights: Mapping[str, Tensor]) -> bool:
    """Whether a layer computes the input of an MLP and its gate, which may be two layers elsewhere."""
    second = weights.get(name.replace("fc1", "fc2"))
    return "fc1" in name and second is not None and weight.shape[0] != second.shape[1]
