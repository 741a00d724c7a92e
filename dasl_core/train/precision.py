"""Mixed precision: the autocast context of `train.precision`."""

from typing import Literal

import torch

Precision = Literal["fp32", "bf16", "fp16", "fp64"]


def autocast(precision: Precision, device: torch.device) -> torch.autocast:
    """The mixed-precision context; does nothing for fp32 and fp64."""
    dtype = autocast_dtype(precision)
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)


def autocast_dtype(precision: Precision) -> torch.dtype | None:
    """The dtype in which the network runs under autocast; None without autocast."""
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)


def weight_dtype(precision: Precision) -> torch.dtype:
    """The dtype of the weights."""
    return torch.float64 if precision == "fp64" else torch.float32
