"""Random views, drawn for each image and computed on the device for a whole batch.

The recipe is SimCLR's (Chen et al. 2020, appendix A). Color changes are linear in the pixels, so
brightness, contrast, saturation, hue and grayscale become one 3x3 matrix and one offset per image;
hue rotates the chroma plane of YIQ, as NVIDIA DALI does, where torchvision goes through HSV. They are
applied in that order (torchvision draws an order; all but hue and contrast's mean commute).

Crops are resampled as Pillow's bilinear or bicubic filter and torchvision with `antialias=True` do, flips
included.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from dasl_core.data.blur import blur_all, blur_one
from dasl_core.data.resampling import crop_all, crop_each
from dasl_core.spec import Normalization, ViewAugment
from dasl_core.spec.fields import EIGHT_BIT, Interpolation

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

    def rows(self, indices: slice | Tensor) -> "ViewParameters":
        """The parameters of some of the images."""
        return self._map(lambda tensor: tensor[indices])

    def to(self, device: torch.device, dtype: torch.dtype) -> "ViewParameters":
        """Convert to a device and a dtype."""
        return self._map(lambda tensor: tensor.to(device, dtype, non_blocking=True))

    def _map(self, change: Callable[[Tensor], Tensor]) -> "ViewParameters":
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
