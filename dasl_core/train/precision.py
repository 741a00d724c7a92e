"""Mixed precision: the autocast context of `train.precision`."""

from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

Precision = Literal["fp32", "bf16", "fp16", "fp64"]


def autocast(precision: Precision, device: torch.device) -> torch.autocast:
    """Create the mixed-precision context; it does nothing for fp32 and fp64."""
    dtype = autocast_dtype(precision)
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)


def autocast_dtype(precision: Precision) -> torch.dtype | None:
    """Return the dtype of the network under autocast; None without autocast."""
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)


def weight_dtype(precision: Precision) -> torch.dtype:
    """Return the dtype of the weights."""
    return torch.float64 if precision == "fp64" else torch.float32


def define_gradients(network: nn.Module, precision: Precision, device: torch.device) -> None:
    """Let convolutions compute inputs in float32 for which torch computes no weight gradient in bf16 on a CPU.

    If the stride is larger than the input, most of a kernel covers only padding. Its gradient is 0, but torch 2.15
    leaves it uninitialized: noise, or NaN. Examples are the last stages of a ResNet for images of 16 pixels.
    """
    if precision != "bf16" or device.type != "cpu":
        return
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d) and max(layer.stride) > 1 and max(layer.kernel_size) > 1:
            layer.forward = partial(_forward, layer)  # type: ignore[method-assign]


def _forward(layer: nn.Conv2d, images: Tensor) -> Tensor:
    """Compute a convolution, in float32 if its stride is larger than the images."""
    height, width = images.shape[-2:]
    small = height < layer.stride[0] or width < layer.stride[1]
    # Of its class, which may be timm's.
    if not small:
        return type(layer).forward(layer, images)
    with torch.autocast("cpu", enabled=False):
        return type(layer).forward(layer, images.float())
