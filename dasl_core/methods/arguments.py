"""What the losses of methods ask of their arguments. Each raises ValueError, naming the argument."""

import math

from torch import Tensor


def check_two_views(name: str, value: Tensor) -> None:
    """It must be (2, B, h)."""
    if value.dim() != 3 or value.shape[0] != 2:
        raise ValueError(
            f"{name} must have the shape (2, B, h), two views of each image; given "
            f"{tuple(value.shape)}"
        )


def check_crops(target_name: str, targets: Tensor, name: str, outputs: Tensor) -> None:
    """They must be (T, B, K) and (V, B, K): the T global views, which come first, and all V >= 2."""
    if targets.dim() != 3 or outputs.dim() != 3 or targets.shape[1:] != outputs.shape[1:]:
        raise ValueError(
            f"{target_name} and {name} must have the shapes (T, B, K) and (V, B, K); given "
            f"{tuple(targets.shape)} and {tuple(outputs.shape)}"
        )
    if not 0 < len(targets) <= len(outputs) or len(outputs) < 2:
        raise ValueError(
            f"{name} must be of at least 2 views, and of all views of {target_name}; given "
            f"{len(outputs)} and {len(targets)}"
        )


def check_temperature(value: float) -> None:
    """It must be finite and above 0."""
    if not 0 < value < math.inf:
        raise ValueError(f"temperature must be a finite number above 0; given {value}")
