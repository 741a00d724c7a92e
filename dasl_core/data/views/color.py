"""Changes of color: one matrix and one offset for each image."""

import math
from functools import lru_cache

import torch
from torch import Tensor

LUMA = (0.299, 0.587, 0.114)  # ITU-R 601-2, as Pillow's
# The rows of the chroma sum to 0: a gray pixel has none, so hue and saturation leave it gray.
RGB_TO_YIQ = (LUMA, (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112))
_TO_YIQ = torch.tensor(RGB_TO_YIQ)
_TO_RGB = torch.linalg.inv(_TO_YIQ)


def color_matrix(brightness: Tensor, saturation: Tensor, hue: Tensor) -> Tensor:
    """Compose (B, 3, 3) matrices: brightness, then saturation, then a hue rotation (1 is a full turn)."""
    cos, sin = torch.cos(2 * math.pi * hue), torch.sin(2 * math.pi * hue)
    zero, one = torch.zeros_like(hue), torch.ones_like(hue)
    turn = torch.stack(
        [
            torch.stack([one, zero, zero], dim=-1),
            torch.stack([zero, saturation * cos, -saturation * sin], dim=-1),
            torch.stack([zero, saturation * sin, saturation * cos], dim=-1),
        ],
        dim=1,
    )
    changed = (saturation != 1) | (hue != 0)
    matrix = torch.where(changed[:, None, None], _TO_RGB @ turn @ _TO_YIQ, torch.eye(3))
    return brightness[:, None, None] * matrix


def recolor(images: Tensor, color: Tensor, contrast: Tensor) -> Tensor:
    """Change the colors of (B, C, H, W) images in [0, 1], clamped to that range.

    Images without 3 bands have no color; brightness applies, and contrast around the mean of each band, since bands may
    have no common scale.

    Args:
        color: (B, 3, 3) on the device of the images.
        contrast: (B,)
    """
    pixels = images.flatten(2)
    # Contrast is linear, so the mean of the recolored pixels need not be computed.
    means = pixels.mean(dim=2)
    if images.shape[1] == 3:
        luma = constant(LUMA, images.dtype, images.device)
        mean = ((color @ means[:, :, None]).squeeze(2) * luma).sum(dim=1, keepdim=True)
        changed = (contrast[:, None, None] * color) @ pixels
    else:
        brightness = color.sum(dim=(1, 2)) / 3
        mean = brightness[:, None] * means
        changed = pixels * (contrast * brightness)[:, None, None]
    offset = (1 - contrast)[:, None] * mean
    return changed.add_(offset[:, :, None]).clamp_(0, 1).view_as(images)


def solarize(images: Tensor) -> Tensor:
    """Invert the pixels above one half of images in [0, 1]."""
    return torch.minimum(images, 1 - images)


@lru_cache(maxsize=64)
def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Create a constant tensor, once per device: a copy in every view would stall the GPU."""
    return torch.tensor(values, dtype=dtype, device=device)
