"""Crops of whole pixels on a CPU, image by image."""

import torch
import torch.nn.functional as F
from torch import Tensor

from dasl_core.data.views.parameters import ViewParameters
from dasl_core.spec.fields import EIGHT_BIT


def crop_pixels(
    canvases: Tensor,
    valid_hw: Tensor,
    view: ViewParameters,
    crops: Tensor,
    window: tuple[float, float],
) -> None:
    """Crop, resample and turn each image.

    8-bit pixels are resampled in 8 bits, with SIMD instructions, as Pillow and torchvision do, unless the
    result is float64 or the window cuts them; others in the type of the result.

    Args:
        canvases: (B, C, S, S) of any `PixelType`.
        valid_hw: (B, 2) height and width of the image within its canvas.
        view: of whole pixels.
        crops: (B, C, size, size), the output, in the units of the canvases.
        window: range to which raw values are clamped.
    """
    eight_bit = canvases.dtype == torch.uint8 and window == EIGHT_BIT
    height, width = valid_hw.unbind(1)
    edges = torch.stack([width, height, width, height], dim=1)
    boxes = (view.box * edges).round().long().tolist()
    turned = [False] * len(boxes) if view.transposed is None else view.transposed.tolist()
    size = crops.shape[-1]
    for canvas, (x, y, across, down), turn, crop in zip(
        canvases, boxes, turned, crops, strict=True
    ):
        left, right = sorted((x, x + across))
        top, bottom = sorted((y, y + down))
        pixels = canvas[None, :, top:bottom, left:right]
        if not eight_bit:
            pixels = pixels.to(crops.dtype).clamp(*window)
        elif crops.dtype == torch.float64:
            pixels = pixels.to(crops.dtype)
        resized = F.interpolate(pixels, (size, size), mode=view.interpolation, antialias=True)[0]
        flips = [axis for axis, extent in ((1, down), (2, across)) if extent < 0]
        if flips:
            resized = resized.flip(flips)
        crop.copy_(resized.mT if turn else resized)
