"""Views as they were drawn and rendered before, to show that nothing else of a run has changed.

Parameters were drawn for the global batch from one generator for each view, and cut to a rank's share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from dasl_core.data.loader import Batch
from dasl_core.distributed import rank
from dasl_core.seeds import stream
from dasl_core.spec import Normalization, ViewAugment
from dasl_core.spec.fields import EIGHT_BIT, Interpolation
from dasl_core.train.views import ViewMaker

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

# Rows of a view that `crop_each` computes at a time. A smaller block multiplies fewer zeros in more calls.
BLOCK = 32


def crop_all(
    canvases: Tensor, valid_hw: Tensor, box: Tensor, size: int, interpolation: Interpolation
) -> Tensor:
    """Crop all canvases with two batched matrix multiplications, in the dtype of the boxes.

    Args:
        canvases: (B, C, S, S), of any dtype.
        valid_hw: (B, 2) height and width of the image within its canvas.
        box: (B, 4), as `ViewParameters.box`.
        size: pixels a side of the result.

    Returns:
        (B, C, size, size), in the units of the canvases. The bicubic filter overshoots.
    """
    count, channels, side, _ = canvases.shape
    centers, reduction, edge = _places(valid_hw, box, size)
    pixels = torch.arange(side, device=box.device, dtype=box.dtype) + 0.5
    rows, columns = (
        _weights(pixels.expand(count, side), centers[:, axis], reduction[:, axis], edge[:, axis], interpolation)
        for axis in (0, 1)
    )  # fmt: skip
    lower = rows[:, None] @ canvases.to(box.dtype)  # (B, C, size, side)
    return (lower.flatten(1, 2) @ columns.mT).view(count, channels, size, size)


def crop_each(
    canvases: Tensor, valid_hw: Tensor, box: Tensor, size: int, interpolation: Interpolation
) -> Tensor:
    """Crop canvases on the CPU one by one: an image costs what its crop does, not its canvas.

    Arguments and result are those of `crop_all`.
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
            [band.of(i) @ part[:, band.first[i] - top : band.end[i] - top] for band in rows], dim=1
        )
        torch.cat(
            [lower[:, :, band.first[i] - left : band.end[i] - left] @ band.of(i).T for band in columns],
            dim=2,
            out=crops[i],
        )  # fmt: skip
    return crops


@dataclass(frozen=True)
class _Band:
    """Weights of the pixels that a block of a view's rows (or columns) reads.

    Attributes:
        first: of each image, the first pixel that it reads.
        end: of each image, the pixel after the last.
        weights: (B, rows, pixels), padded with zeros to the longest.
    """

    first: list[int]
    end: list[int]
    weights: Tensor

    def of(self, i: int) -> Tensor:
        """Return (rows, pixels) weights of one image."""
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
        weights = _weights(pixels, block, reduction, edge, interpolation)
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
    pixels: Tensor, centers: Tensor, reduction: Tensor, edge: Tensor, interpolation: Interpolation
) -> Tensor:
    """Weights (B, rows, P) of (B, P) pixels of a canvas in (B, rows) of a view."""
    distance = (pixels[:, None, :] - centers[:, :, None]).abs() / reduction[:, None, None]
    # Beyond the image the canvas is empty.
    weights = FILTERS[interpolation].weights(distance) * (pixels < edge[:, None])[:, None, :]
    return weights / weights.sum(dim=2, keepdim=True)


LUMA = (0.299, 0.587, 0.114)  # ITU-R 601-2, as Pillow's
# The rows of the chroma sum to 0: a gray pixel has none, so hue and saturation leave it gray.
RGB_TO_YIQ = (LUMA, (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112))

CROP_TRIES = 10  # as torchvision's RandomResizedCrop, which then falls back to a central crop
CROP_RATIO = (3 / 4, 4 / 3)
# SimCLR's strengths at jitter 1: 0.8 each, and 0.2 of a turn of hue.
JITTER, HUE_JITTER = 0.8, 0.2
BLUR_SIGMA = (0.1, 2.0)

# Side of views from which a CPU renders images one by one. Smaller ones take less time in a batch.
ONE_BY_ONE_FROM = 64


@dataclass(frozen=True)
class ViewParameters:
    """The random parameters of one view of B images. All float32 on the CPU until `to` moves them.

    Attributes:
        box: (B, 4), x, y, width, height of the crop as shares of the image; width is negative for a
            flipped view, x then being the right edge.
        color: (B, 3, 3), multiplies an RGB pixel.
        contrast: (B,), 1 for none; the change is around the image's mean luminance.
        sigma: (B,), blur in pixels of the view; 0 is none. None when no image is blurred.
        solarized: (B,), 1 where pixels above one half are inverted, else 0. None when none is.
        interpolation: filter of the crop.
    """

    box: Tensor
    color: Tensor
    contrast: Tensor
    sigma: Tensor | None
    solarized: Tensor | None = None
    interpolation: Interpolation = "bilinear"

    def rows(self, indices: slice | Tensor) -> ViewParameters:
        """The parameters of some of the images."""
        return self._map(lambda tensor: tensor[indices])

    def to(self, device: torch.device, dtype: torch.dtype) -> ViewParameters:
        """Convert to a device and a dtype."""
        return self._map(lambda tensor: tensor.to(device, dtype, non_blocking=True))

    def _map(self, change: Callable[[Tensor], Tensor]) -> ViewParameters:
        sigma, solarized = (
            None if tensor is None else change(tensor) for tensor in (self.sigma, self.solarized)
        )
        return replace(
            self,
            box=change(self.box),
            color=change(self.color),
            contrast=change(self.contrast),
            sigma=sigma,
            solarized=solarized,
        )


def draw_view(valid_hw: Tensor, augment: ViewAugment, generator: torch.Generator) -> ViewParameters:
    """Draw the parameters of one view for images of (B, 2) height, width.

    Draw for the global batch and take a rank's rows: then views do not depend on how many ranks
    there are.
    """
    count = valid_hw.shape[0]
    box = _crop_boxes(valid_hw, augment.crop_scale, generator)
    flip = torch.rand(count, generator=generator) < augment.flip
    x, y, width, height = box.unbind(1)
    box = torch.stack(
        [torch.where(flip, x + width, x), y, torch.where(flip, -width, width), height], dim=1
    )
    strength = JITTER * augment.jitter
    active = (torch.rand(count, generator=generator) < augment.jitter_probability).float()
    brightness, contrast, saturation = (
        1 + active * _uniform(max(-1.0, -each), each, count, generator)
        for each in (strength, strength, strength * augment.saturation)
    )
    hue = active * _uniform(-0.5, 0.5, count, generator) * 2 * HUE_JITTER * augment.jitter
    gray = (torch.rand(count, generator=generator) < augment.grayscale).float()
    sigma = solarized = None
    if augment.blur > 0:
        blurred = torch.rand(count, generator=generator) < augment.blur
        sigma = blurred * _uniform(*BLUR_SIGMA, count, generator)
    if augment.solarize > 0:
        solarized = (torch.rand(count, generator=generator) < augment.solarize).float()
    color = _color_matrix(brightness, saturation * (1 - gray), hue)
    return ViewParameters(box, color, contrast, sigma, solarized, augment.interpolation)


def central_view(valid_hw: Tensor, crop_pct: float = 1.0) -> ViewParameters:
    """A central square of each image, unchanged: the view for evaluation.

    Args:
        crop_pct: its side, as a share of the image's shorter side.
    """
    count = valid_hw.shape[0]
    side = crop_pct * valid_hw.min(dim=1, keepdim=True).values
    share = side / valid_hw  # (B, 2) of height and width
    height, width = share.unbind(1)
    box = torch.stack([(1 - width) / 2, (1 - height) / 2, width, height], dim=1)
    identity = torch.eye(3).expand(count, 3, 3)
    return ViewParameters(box, identity, torch.ones(count), None)


def render(
    canvases: Tensor,
    valid_hw: Tensor,
    view: ViewParameters,
    image_size: int,
    dtype: torch.dtype,
    normalization: Normalization,
) -> Tensor:
    """Render a view of each canvas.

    Args:
        canvases: (B, C, S, S) raw values of any `PixelType`, on the device.
        valid_hw: (B, 2) height and width of the image within its canvas.
        view: parameters, moved to the device with `to`.
        image_size: pixels a side of the result.
        dtype: floating-point type of the computation and the result.
        normalization: of C channels, that of the network that gets the view; its window maps raw values to [0, 1].

    Returns:
        (B, C, image_size, image_size), normalized.
    """
    # The levels of deeper pixels would be lost in half precision.
    precision = dtype if canvases.dtype == torch.uint8 else torch.float32
    one_by_one = canvases.device.type == "cpu" and image_size >= ONE_BY_ONE_FROM
    crop = crop_each if one_by_one else crop_all
    valid_hw, box = valid_hw.to(canvases.device), view.box.to(precision)
    images = crop(canvases, valid_hw, box, image_size, view.interpolation)
    images = _to_window(images, normalization.window).to(dtype)
    if view.interpolation == "bicubic" or normalization.window != EIGHT_BIT:
        images = images.clamp(0, 1)  # the filter overshoots, and the window cuts
    change = _change_each if one_by_one else _change_all
    mean, std = (
        _constant(values, dtype, images.device).view(-1, 1, 1)
        for values in (normalization.mean, normalization.std)
    )
    return change(images, view).sub_(mean).div_(std)


def _change_all(images: Tensor, view: ViewParameters) -> Tensor:
    """Change the colors of (B, C, H, W) images in [0, 1], blur and solarize them."""
    if images.shape[1] == 3:
        images = _recolor(images, view.color, view.contrast)
    else:  # without color, only brightness and contrast apply
        images = images * (view.color.sum(dim=(1, 2)) / 3)[:, None, None, None]
        images = _stretch(images, images, view.contrast)
    images = images.clamp(0, 1)
    if view.sigma is not None:
        images = blur_all(images, view.sigma)
    if view.solarized is not None:
        chosen = (images > 0.5) & (view.solarized > 0)[:, None, None, None]
        images = torch.where(chosen, 1 - images, images)
    return images


def _change_each(images: Tensor, view: ViewParameters) -> Tensor:
    """Do what `_change_all` does, in place, and only to the images that draw it."""
    colored = (view.color != torch.eye(3, dtype=view.color.dtype)).any(dim=(1, 2))
    colored |= view.contrast != 1
    count = len(images)
    sigmas = [0.0] * count if view.sigma is None else view.sigma.tolist()
    solarized = [0.0] * count if view.solarized is None else view.solarized.tolist()
    plain = replace(view, sigma=None, solarized=None)
    for i, image in enumerate(images):
        if colored[i]:
            row = slice(i, i + 1)
            image.copy_(_change_all(images[row], plain.rows(row))[0])
        else:
            image.clamp_(0, 1)  # rounding may leave the filtered values just outside
        if sigmas[i] > 0:
            image.copy_(blur_one(image, sigmas[i]))
        if solarized[i] > 0:
            image.copy_(torch.where(image > 0.5, 1 - image, image))
    return images


def _to_window(images: Tensor, window: tuple[float, float]) -> Tensor:
    """Map raw values to [0, 1]; those outside of the window lie outside of it."""
    low, high = window
    return (images - low) / (high - low)


@lru_cache(maxsize=64)
def _constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Create a constant tensor, once per device: a copy in every view would stall the GPU."""
    return torch.tensor(values, dtype=dtype, device=device)


def _uniform(low: float, high: float, count: int, generator: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand(count, generator=generator)


def _crop_boxes(valid_hw: Tensor, scale: tuple[float, float], generator: torch.Generator) -> Tensor:
    """Draw (B, 4) boxes x, y, width, height in shares of the image, as RandomResizedCrop does."""
    count = valid_hw.shape[0]
    height, width = (edge.float().unsqueeze(1) for edge in valid_hw.unbind(1))
    area = scale[0] + (scale[1] - scale[0]) * torch.rand(count, CROP_TRIES, generator=generator)
    low, high = math.log(CROP_RATIO[0]), math.log(CROP_RATIO[1])
    ratio = torch.exp(low + (high - low) * torch.rand(count, CROP_TRIES, generator=generator))
    crop_width = torch.sqrt(area * height * width * ratio) / width
    crop_height = torch.sqrt(area * height * width / ratio) / height
    fits = (crop_width <= 1) & (crop_height <= 1)
    first = fits.float().argmax(dim=1, keepdim=True)
    # Fallback if no try fits: the largest central crop of an allowed ratio.
    fallback_width = (height * CROP_RATIO[1] / width).clamp(max=1)
    fallback_height = (width / CROP_RATIO[0] / height).clamp(max=1)
    any_fits = fits.any(dim=1, keepdim=True)
    box_width = torch.where(any_fits, crop_width.gather(1, first), fallback_width)
    box_height = torch.where(any_fits, crop_height.gather(1, first), fallback_height)
    place = torch.rand(count, 2, generator=generator)
    place = torch.where(any_fits, place, torch.full_like(place, 0.5))
    x = place[:, :1] * (1 - box_width)
    y = place[:, 1:] * (1 - box_height)
    return torch.cat([x, y, box_width, box_height], dim=1)


def _color_matrix(brightness: Tensor, saturation: Tensor, hue: Tensor) -> Tensor:
    """Compose (B, 3, 3) matrices: brightness, then saturation, then a hue rotation (1 is a full turn)."""
    to_yiq = torch.tensor(RGB_TO_YIQ)
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
    matrix: Tensor = brightness[:, None, None] * (torch.linalg.inv(to_yiq) @ turn @ to_yiq)
    return matrix


def _recolor(images: Tensor, color: Tensor, contrast: Tensor) -> Tensor:
    recolored = (color @ images.flatten(2)).view_as(images)
    weights = _constant(LUMA, images.dtype, images.device).view(1, 3, 1, 1)
    return _stretch(recolored, (recolored * weights).sum(dim=1, keepdim=True), contrast)


def _stretch(images: Tensor, luminance: Tensor, contrast: Tensor) -> Tensor:
    mean = luminance.mean(dim=(1, 2, 3), keepdim=True)
    return torch.lerp(mean, images, contrast[:, None, None, None])


def crop_of_v0_1(
    canvases: Tensor, valid_hw: Tensor, box: Tensor, size: int, kernel: object
) -> Tensor:
    """Resample crops as the first views did: from two pixels, which aliases where a crop shrinks."""
    side = canvases.shape[-1]
    height, width = (edge.to(box.dtype) for edge in valid_hw.unbind(1))
    center = (torch.arange(size, dtype=box.dtype) + 0.5) / size
    x = (box[:, 0:1] + center * box[:, 2:3]) * width[:, None]
    y = (box[:, 1:2] + center * box[:, 3:4]) * height[:, None]
    x = torch.minimum(x.clamp(min=0.5), width[:, None] - 0.5) * 2 / side - 1
    y = torch.minimum(y.clamp(min=0.5), height[:, None] - 0.5) * 2 / side - 1
    grid = torch.stack(
        [x[:, None, :].expand(-1, size, -1), y[:, :, None].expand(-1, -1, size)], dim=-1
    )
    pixels = canvases.to(box.dtype) / 255
    return F.grid_sample(pixels, grid, mode="bilinear", align_corners=False)


class OldViewMaker(ViewMaker):
    """Makes a rank's views as version 0.1 did."""

    def make(self, batch: Batch, step: int) -> list[Tensor]:
        """Render one tensor (B, C, H, W) per view."""
        canvases = batch.canvases.to(self.device, non_blocking=True)
        share = len(canvases)
        first = rank() * share
        valid_hw = torch.ones(len(batch.indices), 2, dtype=batch.valid_hw.dtype)
        valid_hw[first : first + share] = batch.valid_hw
        views = []
        for number, view in enumerate(self.views):
            generator = stream(self.seed, "augment", step, number)
            drawn = draw_view(valid_hw, view.augment, generator).rows(slice(first, first + share))
            drawn = drawn.to(self.device, self.dtype)
            images = render(
                canvases, batch.valid_hw, drawn, view.image_size, self.dtype, self.normalization
            )
            views.append(images.contiguous(memory_format=self.layout))
        return views
