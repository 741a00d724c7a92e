"""Gaussian blur with a separable kernel of a tenth of the side, as SimCLR's, and mirrored borders."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

# Kernel radius of `blur_one` in standard deviations; the rest changes no pixel by 1e-4.
REACH = 4.0


def kernel_radius(size: int) -> int:
    """Return the kernel radius in pixels for views of this size."""
    return max(1, size // 20)


def blur_all(images: Tensor, sigma: Tensor) -> Tensor:
    """Blur (B, C, H, H) images by (B,) sigmas in pixels, 0 for none, with two convolutions."""
    count, channels, size, _ = images.shape
    radius = kernel_radius(size)
    offsets = torch.arange(-radius, radius + 1, device=images.device, dtype=images.dtype)
    # A sigma of 0 has no kernel; a small one has the identity.
    safe = sigma.clamp(min=0.05)[:, None]
    kernel = torch.softmax(-(offsets**2) / (2 * safe**2), dim=1)
    kernel = kernel.repeat_interleave(channels, dim=0)  # (B * C, 2 * radius + 1)
    stacked = images.reshape(1, count * channels, size, size)
    stacked = F.pad(stacked, (radius,) * 4, mode="reflect")
    stacked = F.conv2d(stacked, kernel[:, None, None, :], groups=count * channels)
    stacked = F.conv2d(stacked, kernel[:, None, :, None], groups=count * channels)
    return stacked.view(count, channels, size, size)


def blur_one(image: Tensor, sigma: float, out: Tensor) -> None:
    """Blur one (C, H, H) image on the CPU by sums of shifted copies, as far as its own kernel reaches.

    Args:
        out: (C, H, H), for the result; may be the image.
    """
    size = image.shape[-1]
    radius = min(kernel_radius(size), math.ceil(REACH * sigma))
    weights = [math.exp(-(offset**2) / (2 * sigma**2)) for offset in range(radius + 1)]
    total = weights[0] + 2 * sum(weights[1:])
    padded = F.pad(image, (radius,) * 4, mode="reflect")
    columns = padded.new_empty(image.shape[0], padded.shape[1], size)
    for dim, source, target in ((2, padded, columns), (1, columns, out)):
        torch.mul(source.narrow(dim, radius, size), weights[0] / total, out=target)
        for offset in range(1, radius + 1):
            for start in (radius - offset, radius + offset):
                target.add_(source.narrow(dim, start, size), alpha=weights[offset] / total)
