"""Gaussian blur with a separable kernel of a tenth of the side, as SimCLR's, and mirrored borders."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

# Standard deviations up to which weights are not lost in float32: the first beyond is below 1e-7 of the center's.
REACH = 5.7


def radius_of(size: int) -> int:
    """Return the pixels on each side of a kernel's center, for views of this side."""
    return max(1, size // 20)


def blur_all(images: Tensor, sigma: Tensor) -> Tensor:
    """Blur (B, C, H, H) images by (B,) sigmas in pixels, 0 for none, with two convolutions."""
    count, channels, size, _ = images.shape
    radius = radius_of(size)
    offsets = torch.arange(-radius, radius + 1, device=images.device, dtype=images.dtype)
    # A sigma of 0 has no kernel; any small one has that of the image itself.
    safe = sigma.clamp(min=0.05)[:, None]
    kernel = torch.softmax(-(offsets**2) / (2 * safe**2), dim=1)
    kernel = kernel.repeat_interleave(channels, dim=0)  # (B * C, 2 * radius + 1)
    stacked = images.reshape(1, count * channels, size, size)
    stacked = F.pad(stacked, (radius,) * 4, mode="reflect")
    stacked = F.conv2d(stacked, kernel[:, None, None, :], groups=count * channels)
    stacked = F.conv2d(stacked, kernel[:, None, :, None], groups=count * channels)
    return stacked.view(count, channels, size, size)


def blur_one(image: Tensor, sigma: float) -> Tensor:
    """Blur one (C, H, H) image on the CPU by sums of shifted copies, as far as its own kernel reaches."""
    size = image.shape[-1]
    radius = min(radius_of(size), math.ceil(REACH * sigma))
    weights = [math.exp(-(offset**2) / (2 * sigma**2)) for offset in range(radius + 1)]
    total = weights[0] + 2 * sum(weights[1:])
    padded = F.pad(image, (radius,) * 4, mode="reflect")
    for dim in (1, 2):
        middle = padded.narrow(dim, radius, size) * (weights[0] / total)
        for offset in range(1, radius + 1):
            for start in (radius - offset, radius + offset):
                middle.add_(padded.narrow(dim, start, size), alpha=weights[offset] / total)
        padded = middle
    return padded
