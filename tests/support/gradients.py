"""Access to gradients that must exist."""

from torch import Tensor


def gradient(tensor: Tensor) -> Tensor:
    """Return the gradient of a tensor after a backward pass."""
    assert tensor.grad is not None
    return tensor.grad
