"""Gradients that must be there."""

from __future__ import annotations

from torch import Tensor


def gradient(tensor: Tensor) -> Tensor:
    """The gradient of a tensor that has taken part in a backward pass."""
    assert tensor.grad is not None
    return tensor.grad
