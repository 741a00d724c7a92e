"""Crops of canvases, resampled as Pillow's `resize` and torchvision's `antialias=True` do.

Where a view reduces, the filter is wider by the reduction, so that details finer than the view's pixels vanish
and leave no moire. A crop is parallel to the axes, so rows and columns are filtered one after the other.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dasl_core.data.views.parameters import ViewParameters
from dasl_core.spec.fields import EIGHT_BIT, Interpolation


def _triangle(distance: Tensor) -> Tensor:
    """Weights of the bilinear filter at distances of at least 0, in pixels."""
    return (1 - distance).clamp(min=0)


def _cubic(distance: Tensor) -> Tensor:
    """Weights of the bicubic filter (Keys 1981), with Pillow's a of -0.5."""
    near = (1.5 * distance - 2.5) * distance * distance + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    return torch.where(distance < 1, near, far * (distance < 2))


@dataclass(frozen=True)
class Filter:
    """A resampling filter: its weights by distance, and the distance from which they are 0."""

    weights: Callable[[Tensor], Tensor]
    support: int


FILTERS: Mapping[Interpolation, Filter] = {
    "bilinear": Filter(_triangle, 1),
    "bicubic": Filter(_cubic, 2),
}

# Rows that `crop_each` computes at a time. A smaller block multiplies fewer zeros in more calls.
BLOCK = 32


def crop_all(
    canvases: Tensor,
    valid_hw: Tensor,
    box: Tensor,
    size: int,
    interpolation: Interpolation,
    *,
    whole_pixels: bool,
) -> Tensor:
    """Crop all canvases, V times each, with two batched matrix multiplications.

    Args:
        canvases: (B, C, S, S), of the dtype of the boxes.
        valid_hw: (B, 2) height and width of the image within its canvas.
        box: (V, B, 4), as `ViewParameters.box`.
        size: pixels a side of the result.
        whole_pixels: as in `ViewParameters`.

    Returns:
        (V, B, C, size, size), in the units of the canvases. The bicubic filter overshoots.
    """
    views = len(box)
    count, channels, side, _ = canvases.shape
    # The views of an image beside each other, so that the first product reads its canvas once.
    box = box.transpose(0, 1).flatten(0, 1)
    centers, reduction, edge = _places(valid_hw.repeat_interleave(views, dim=0), box, size)
    pixels = torch.arange(side, device=box.device, dtype=box.dtype) + 0.5
    first, end = torch.zeros_like(edge), edge
    if whole_pixels:
        one, other = box[:, [1, 0]] * edge, (box[:, [1, 0]] + box[:, [3, 2]]) * edge
        first, end = torch.minimum(one, other).round(), torch.maximum(one, other).round()
    rows, columns = (
        _weights(
            pixels.expand(len(box), side),
            centers[:, axis],
            reduction[:, axis],
            first[:, axis],
            end[:, axis],
            interpolation,
        )
        for axis in (0, 1)
    )
    # All channels of a row beside each other, so that the weights need not be copied for each.
    canvases = canvases.transpose(1, 2).reshape(count, side, channels * side)
    lower = rows.view(count, views * size, side) @ canvases
    crops = lower.view(len(box), size * channels, side) @ columns.mT
    return crops.view(count, views, size, channels, size).permute(1, 0, 3, 2, 4)


def crop_each(
    canvases: Tensor, valid_hw: Tensor, box: Tensor, size: int, interpolation: Interpolation
) -> Tensor:
    """Crop canvases on the CPU one by one, at any boxes: an image costs what its crop does, not its canvas.

    Arguments and result are those of `crop_all`, but the canvases may be of any dtype.
    """
    centers, reduction, edge = _places(valid_hw, box, size)
    rows, columns = (
        _bands(centers[:, axis], reduction[:, axis], edge[:, axis], interpolation)
        for axis in (0, 1)
    )
    crops = box.new_empty(*canvases.shape[:2], size, size)
    for i, canvas in enumerate(canvases):
        (top, bottom), (left, right) = (
            (min(band.first[i] for band in bands), max(band.end[i] for band in bands))
            for bands in (rows, columns)
        )
        part = canvas[:, top:bottom, left:right].to(box.dtype)
        lower = torch.cat(
            [band.image(i) @ part[:, band.first[i] - top : band.end[i] - top] for band in rows],
            dim=1,
        )
        torch.cat(
            [lower[:, :, band.first[i] - left : band.end[i] - left] @ band.image(i).T for band in columns],
            dim=2,
            out=crops[i],
        )  # fmt: skip
    return crops


def crop_pixels(
    canvases: Tensor,
    valid_hw: Tensor,
    view: ViewParameters,
    crops: Tensor,
    window: tuple[float, float],
) -> None:
    """Crop whole pixels on a CPU, image by image, and resample and turn them.

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


@dataclass(frozen=True)
class _Band:
    """Weights of the source pixels of a block of rows or columns of a view.

    Attributes:
        first: the first source pixel of each image.
        end: the end of each image's source pixels, exclusive.
        weights: (B, rows, pixels), padded with zeros to the longest.
    """

    first: list[int]
    end: list[int]
    weights: Tensor

    def image(self, i: int) -> Tensor:
        """Return the weights (rows, pixels) of one image."""
        return self.weights[i, :, : self.end[i] - self.first[i]]


def _bands(
    centers: Tensor, reduction: Tensor, edge: Tensor, interpolation: Interpolation
) -> list[_Band]:
    reach = FILTERS[interpolation].support * reduction
    bands = []
    for block in centers.split(BLOCK, dim=1):
        first = (block.amin(dim=1) - reach).floor().clamp(min=0)
        end = torch.minimum((block.amax(dim=1) + reach).ceil(), edge)
        pixels = first[:, None] + torch.arange(int((end - first).max()), dtype=block.dtype) + 0.5
        weights = _weights(pixels, block, reduction, torch.zeros_like(edge), edge, interpolation)
        bands.append(_Band(first.int().tolist(), end.int().tolist(), weights))
    return bands


def _places(valid_hw: Tensor, box: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Locate the rows and columns of views in canvases, in pixels.

    Returns:
        Centers (B, 2, size) of rows and of columns, by how much they are reduced (B, 2), at least 1, and
        edges (B, 2) of the images.
    """
    edge = valid_hw.to(box.dtype)
    start, share = box[:, [1, 0]], box[:, [3, 2]]  # the share of a flipped view is negative
    steps = (torch.arange(size, device=box.device, dtype=box.dtype) + 0.5) / size
    centers = (start[:, :, None] + steps * share[:, :, None]) * edge[:, :, None]
    return centers, (share.abs() * edge / size).clamp(min=1), edge


def _weights(
    pixels: Tensor,
    centers: Tensor,
    reduction: Tensor,
    first: Tensor,
    end: Tensor,
    interpolation: Interpolation,
) -> Tensor:
    """Compute weights (B, rows, P) of canvas pixels (B, P) for view rows (B, rows).

    Pixels before `first` (B,) and from `end` (B,) on have weight 0.
    """
    distance = (pixels[:, None, :] - centers[:, :, None]).abs() / reduction[:, None, None]
    inside = (pixels > first[:, None]) & (pixels < end[:, None])
    weights = FILTERS[interpolation].weights(distance) * inside[:, None, :]
    return weights / weights.sum(dim=2, keepdim=True)
