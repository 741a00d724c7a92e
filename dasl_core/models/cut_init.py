"""Cut-initialization of Draganov et al., ICML 2025 (arXiv 2502.09252)."""

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd


@torch.no_grad()
def cut_weights(network: nn.Module, factor: float) -> None:
    """Divide the weights of all linear and convolutional layers by `factor`, in place.

    Embeddings start shorter, and the gradient of a loss of cosines is the larger the shorter they are.
    Biases, and layers that normalize, stay as they are.
    """
    for layer in network.modules():
        if isinstance(layer, nn.Linear | _ConvNd):
            layer.weight.div_(factor)
