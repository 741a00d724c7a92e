"""Random parameters of a view, from counter-based random numbers.

A number is a hash of a key, the position of an image and the number of the draw. So a rank draws only
for its own images, and neither the number of ranks nor what else is drawn changes what an image gets.
The hash is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dasl_core.data.views.color import color_matrix
from dasl_core.data.views.parameters import ViewParameters
from dasl_core.spec import ViewAugment
from dasl_core.spec.fields import Interpolation

CROP_TRIES = 10  # as torchvision's RandomResizedCrop, which then falls back to a central crop
CROP_RATIO = (3 / 4, 4 / 3)
# SimCLR's strengths at jitter 1: 0.8 each, and 0.2 of a turn of hue.
JITTER, HUE_JITTER = 0.8, 0.2
BLUR_SIGMA = (0.1, 2.0)
_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # the golden ratio, odd
_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
_BITS = 24  # of a float32's significand


class _Draw(IntEnum):
    """Index of each random draw. Append only: reordering changes every view."""

    FLIP = 0
    JITTERED = 1
    BRIGHTNESS = 2
    CONTRAST = 3
    SATURATION = 4
    HUE = 5
    GRAYSCALE = 6
    BLURRED = 7
    SIGMA = 8
    SOLARIZED = 9
    LEFT = 10
    TOP = 11
    AREAS = 12  # of `CROP_TRIES`
    RATIOS = 22  # of `CROP_TRIES`
    VERTICAL_FLIP = 32
    ROTATED = 33
    TURNS = 34
    DROPPED = 35
    BAND = 36


@dataclass(frozen=True)
class Draws:
    """Random operations of one view of B images, or of V * B, one view after the other. Numbers are float32.

    Attributes are in order of application. An operation that no image draws is None.

    Attributes:
        crop: (B, 4), x, y, width and height of the crop, in whole pixels of the image.
        flip: (B,) bool, whether columns are mirrored.
        vertical_flip: (B,) bool, whether rows are mirrored.
        turns: (B,) int64, quarter turns, counterclockwise.
        brightness: (B,), factor of the pixels.
        contrast: (B,), factor of the distance to the mean luminance of the image, or without color of the band.
        saturation: (B,), factor of the chroma, also that of images that become gray.
        hue: (B,), rotation of the chroma; 1 is a full turn.
        grayscale: (B,) bool, whether the image becomes gray.
        sigma: (B,), blur in pixels of the view; 0 is none.
        solarized: (B,) bool, whether pixels above one half are inverted.
        dropped: (B,) int64, the band that becomes the mean that the network expects; -1 is none.
    """

    crop: Tensor
    flip: Tensor
    vertical_flip: Tensor
    turns: Tensor | None
    brightness: Tensor
    contrast: Tensor
    saturation: Tensor
    hue: Tensor
    grayscale: Tensor
    sigma: Tensor | None
    solarized: Tensor | None
    dropped: Tensor | None

    def split(self, count: int) -> list["Draws"]:
        """Return the operations of each of several views."""
        size = len(self.crop) // count
        return [self._rows(slice(start, start + size)) for start in range(0, count * size, size)]

    def _rows(self, rows: slice) -> "Draws":
        changed: dict[str, Any] = {
            name: value[rows] for name, value in vars(self).items() if value is not None
        }
        return replace(self, **changed)

    def parameters(self, valid_hw: Tensor, interpolation: Interpolation) -> ViewParameters:
        """Return the rendering parameters for images of heights and widths `valid_hw` (B, 2)."""
        valid_hw = valid_hw.repeat(len(self.crop) // len(valid_hw), 1)
        mirrored, upended, transposed = self.flip, self.vertical_flip, None
        if self.turns is not None:
            # An odd number of quarter turns mirrors columns and then exchanges them with rows.
            transposed = self.turns % 2 == 1
            mirrored_first = (self.turns == 1) | (self.turns == 2)
            upended_first = (self.turns == 2) | (self.turns == 3)
            # Flips of the view, which come before the turn, are flips of the crop.
            mirrored, upended = mirrored ^ mirrored_first, upended ^ upended_first
        box = self.crop.clone()
        for axis, flipped in enumerate((mirrored, upended)):
            start, extent = box[:, axis], box[:, axis + 2]
            box[:, axis] = torch.where(flipped, start + extent, start)
            box[:, axis + 2] = torch.where(flipped, -extent, extent)
        height, width = valid_hw.float().unbind(1)
        colorful = (~self.grayscale).float()
        return ViewParameters(
            box / torch.stack([width, height, width, height], dim=1),
            color_matrix(self.brightness, self.saturation * colorful, self.hue),
            self.contrast,
            self.sigma,
            self.solarized,
            interpolation,
            transposed,
            self.dropped,
            whole_pixels=True,
        )


def draw(
    valid_hw: Tensor,
    augment: ViewAugment,
    keys: Sequence[int],
    positions: Tensor,
    channels: int = 3,
) -> Draws:
    """Draw views, one for each key.

    The draws of an image are a function of the key, its position and its size, so a rank draws only for its images.

    Args:
        valid_hw: (B, 2) int64, heights and widths of the images.
        keys: of each view in this step, from `derive_seed`.
        positions: (B,) int64, positions of the images in the global batch.
        channels: bands of the images.
    """
    numbers = torch.cat([uniform(key, positions, max(_Draw) + 1) for key in keys])
    valid_hw = valid_hw.repeat(len(keys), 1)

    def happens(draw: _Draw, probability: float) -> Tensor:
        return numbers[:, draw] < probability

    def between(draw: _Draw, low: float, high: float) -> Tensor:
        return low + (high - low) * numbers[:, draw]

    turns = sigma = solarized = dropped = None
    if augment.rotate > 0:
        turns = 1 + (3 * numbers[:, _Draw.TURNS]).long()
        turns = turns * happens(_Draw.ROTATED, augment.rotate)
    strength = JITTER * augment.jitter
    active = happens(_Draw.JITTERED, augment.jitter_probability).float()
    # Of brightness, contrast and saturation, whose numbers are beside each other.
    high = torch.tensor([strength, strength, strength * augment.saturation])
    low = torch.tensor([max(-1.0, -spread) for spread in high.tolist()])
    changes = low + (high - low) * numbers[:, _Draw.BRIGHTNESS : _Draw.SATURATION + 1]
    brightness, contrast, saturation = (1 + active[:, None] * changes).unbind(1)
    if augment.blur > 0:
        sigma = happens(_Draw.BLURRED, augment.blur) * between(_Draw.SIGMA, *BLUR_SIGMA)
    if augment.solarize > 0:
        solarized = happens(_Draw.SOLARIZED, augment.solarize)
    if augment.channel_drop > 0 and channels > 1:
        band = (channels * numbers[:, _Draw.BAND]).long()
        dropped = torch.where(happens(_Draw.DROPPED, augment.channel_drop), band, -1)
    return Draws(
        crop=_crop_boxes(valid_hw, augment.crop_scale, numbers),
        flip=happens(_Draw.FLIP, augment.flip),
        vertical_flip=happens(_Draw.VERTICAL_FLIP, augment.vertical_flip),
        turns=turns,
        brightness=brightness,
        contrast=contrast,
        saturation=saturation,
        hue=active * between(_Draw.HUE, -0.5, 0.5) * 2 * HUE_JITTER * augment.jitter,
        grayscale=happens(_Draw.GRAYSCALE, augment.grayscale),
        sigma=sigma,
        solarized=solarized,
        dropped=dropped,
    )


def draw_view(
    valid_hw: Tensor, augment: ViewAugment, key: int, positions: Tensor, channels: int = 3
) -> ViewParameters:
    """Draw the parameters of one view; arguments as for `draw`."""
    drawn = draw(valid_hw, augment, [key], positions, channels)
    return drawn.parameters(valid_hw, augment.interpolation)


def _crop_boxes(valid_hw: Tensor, scale: tuple[float, float], numbers: Tensor) -> Tensor:
    """Return (B, 4) boxes x, y, width, height in whole pixels, as torchvision's RandomResizedCrop draws them."""
    height, width = (edge.float().unsqueeze(1) for edge in valid_hw.unbind(1))
    areas, ratios = (
        numbers[:, first : first + CROP_TRIES] for first in (_Draw.AREAS, _Draw.RATIOS)
    )
    area = (scale[0] + (scale[1] - scale[0]) * areas) * height * width
    low, high = math.log(CROP_RATIO[0]), math.log(CROP_RATIO[1])
    ratio = torch.exp(low + (high - low) * ratios)
    crop_width, crop_height = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
    fits = (crop_width >= 1) & (crop_width <= width) & (crop_height >= 1) & (crop_height <= height)
    first_fit = fits.float().argmax(dim=1, keepdim=True)
    # Fallback if no try fits: the largest central crop of an allowed ratio.
    fallback_width = torch.minimum((height * CROP_RATIO[1]).round(), width)
    fallback_height = torch.minimum((width / CROP_RATIO[0]).round(), height)
    any_fits = fits.any(dim=1, keepdim=True)
    box_width = torch.where(any_fits, crop_width.gather(1, first_fit), fallback_width)
    box_height = torch.where(any_fits, crop_height.gather(1, first_fit), fallback_height)
    x, y = (
        torch.where(
            any_fits,
            (numbers[:, draw, None] * (edge - size + 1)).floor().clamp(max=edge - size),
            ((edge - size) / 2).floor(),
        )
        for draw, edge, size in ((_Draw.LEFT, width, box_width), (_Draw.TOP, height, box_height))
    )
    return torch.cat([x, y, box_width, box_height], dim=1)


def uniform(key: int, positions: Tensor, draws: int) -> Tensor:
    """Draw (B, draws) float32 numbers, uniform in [0, 1).

    Args:
        key: of 63 bits, from `derive_seed`.
        positions: (B,) int64, at least 0, of the images.
        draws: numbers for each image. The first ones do not depend on how many follow.
    """
    seeds = _mix(np.uint64(key) + _steps(positions.numpy()))
    numbers = _mix(seeds[:, None] + _steps(np.arange(draws)))
    high = (numbers >> np.uint64(64 - _BITS)).astype(np.float32)
    return torch.from_numpy(high * np.float32(2.0**-_BITS))


def _steps(counters: np.ndarray) -> np.ndarray:
    """Return the offset of each counter's state from the start, modulo 2**64."""
    return (counters.astype(np.uint64) + np.uint64(1)) * _GAMMA


def _mix(state: np.ndarray) -> np.ndarray:
    for shift, factor in zip(_SHIFTS[:2], _FACTORS, strict=True):
        state = (state ^ (state >> shift)) * factor
    mixed: np.ndarray = state ^ (state >> _SHIFTS[2])
    return mixed
