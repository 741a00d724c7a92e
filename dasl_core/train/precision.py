"""Mixed precision: the autocast context of `train.precision`."""

from functools import partial
from typing import Any, Literal

import torch
from torch import nn

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


def refuse_undefined_gradients(
    network: nn.Module, precision: Precision, device: torch.device
) -> None:
    """Make convolutions refuse inputs for which torch computes no weight gradient in bf16 on a CPU.

    If the stride is larger than the input, most of a kernel covers only padding. Its gradient is 0, but torch 2.15
    leaves it uninitialized: noise, or NaN. Examples are the last stages of a ResNet for images of 16 pixels.
    """
    if precision != "bf16" or device.type != "cpu":
        return
    for name, layer in network.named_modules():
        if isinstance(layer, nn.Conv2d) and max(layer.stride) > 1 and max(layer.kernel_size) > 1:
            layer.register_forward_pre_hook(partial(_refuse_small_input, name))


def _refuse_small_input(name: str, layer: nn.Conv2d, inputs: tuple[Any, ...]) -> None:
    """Refuse training on inputs of a convolution smaller than its stride."""
    height, width = inputs[0].shape[-2:]
    small = height < layer.stride[0] or width < layer.stride[1]
    if small and torch.is_grad_enabled() and layer.weight.requires_grad:
        raise ValueError(
            f"train.precision: torch cannot compute bf16 gradients of {name} on a CPU, a convolution "
            f"of stride {layer.stride[0]} over {height} x {width} pixels. Use fp32, or a larger "
            "backbone.image_size or method.local_size."
        )
