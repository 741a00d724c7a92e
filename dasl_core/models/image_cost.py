"""Count what an image costs in a network: multiply-adds, and the values that a backward pass needs."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

_IMAGES = 2  # BatchNorm needs two


class ImageCost(NamedTuple):
    """Cost of one image.

    Attributes:
        multiply_adds: of matrix products and convolutions in a forward pass.
        activations: float32 values that autograd keeps from it for the backward pass.
    """

    multiply_adds: int
    activations: int


def image_cost(network: nn.Module, size: int) -> ImageCost:
    """Count the cost of an image of `size` pixels a side; the network is on the meta device."""
    training = network.training
    try:
        counter = FlopCounterMode(display=False)
        with torch.device("meta"), torch.no_grad(), counter:
            network.train()(torch.empty(_IMAGES, 3, size, size))
        kept = _kept_bytes(network, size)
    finally:
        network.train(training)
    return ImageCost(counter.get_total_flops() // (2 * _IMAGES), kept // (4 * _IMAGES))


def _kept_bytes(network: nn.Module, size: int) -> int:
    # Tensors are held, so that no later storage gets the address of one of them.
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage()._cdata, tensor)
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with torch.device("meta"), _FusedAttention(), hooks:
        outputs = network(torch.empty(_IMAGES, 3, size, size))
    weights = {weight.untyped_storage()._cdata for weight in network.parameters()}
    del outputs
    return sum(
        tensor.untyped_storage().nbytes()
        for address, tensor in kept.items()
        if address not in weights
    )


class _FusedAttention(TorchFunctionMode):
    """Keep four tensors of an attention, as fused kernels do: the meta device would keep all its weights."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is F.scaled_dot_product_attention:
            query, key, value = args[:3]
            if query.shape == key.shape == value.shape:
                return query * key * value
        return func(*args, **(kwargs or {}))
