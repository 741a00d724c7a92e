"""Mixed precision: the autocast context of a resolved spec."""

import torch

from dasl_core.spec import ResolvedJobSpec


def autocast(spec: ResolvedJobSpec, device: torch.device) -> torch.autocast:
    """The mixed-precision context of a resolved spec; does nothing for fp32 and fp64."""
    dtype = autocast_dtype(spec)
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)


def autocast_dtype(spec: ResolvedJobSpec) -> torch.dtype | None:
    """The dtype in which the network runs under autocast; None without autocast."""
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(spec.train.precision)
