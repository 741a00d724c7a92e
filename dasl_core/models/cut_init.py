"""Cut-initialization of Draganov et al., ICML 2025 (arXiv 2502.09252)."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd


@torch.no_grad()
def cut_weights(network: nn.Module, factor: float, keep: Sequence[nn.Module] = ()) -> None:
    """Divide the weights of all linear and convolutional layers by `factor`, in place.

    Embeddings start shorter, and the gradient of a loss of cosines is the larger the shorter they are.
    Without normalization between them, layers shrink the embedding one after the other: n layers by the
    factor to the power of n. Biases, and layers that normalize, stay as they are.

    Args:
        keep: layers that stay as they are, too.
    """
    for layer in network.modules():
        if isinstance(layer, nn.Linear | _ConvNd) and layer not in keep:
            layer.weight.div_(factor)
