"""Random one-dimensional projections, for regularizers that compare a distribution with a Gaussian."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dasl_core.tensors import check_whole_number, full_precision, to_device


def check_views(embeddings: object) -> Tensor:
    """Return embeddings (..., N, h) of at least one sample in full precision.

    Raises:
        ValueError: they have another shape or type; the message says which.
    """
    if not isinstance(embeddings, Tensor) or not embeddings.is_floating_point():
        given = embeddings.dtype if isinstance(embeddings, Tensor) else type(embeddings).__name__
        raise ValueError(f"embeddings must be a real floating-point tensor; given {given}")
    if embeddings.dim() < 2 or 0 in embeddings.shape:
        raise ValueError(
            "embeddings must have the shape (..., N, h), without empty dimensions; given "
            f"{tuple(embeddings.shape)}"
        )
    return full_precision(embeddings)


def random_directions(like: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """Draw unit columns (h, count) for `like` (..., N, h), on the CPU so that all ranks agree.

    Raises:
        ValueError: `count` is not a whole number of at least 1.
    """
    check_whole_number(count, "slices")
    # In float32 and normalized on the device, because float64 on the CPU took seconds per step for large sizes.
    drawn = torch.randn(count, like.shape[-1], generator=generator, dtype=torch.float32)
    return F.normalize(to_device(drawn, like.device).to(like.dtype), dim=1).T
