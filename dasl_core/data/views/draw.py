"""The random numbers of a view, and what they mean."""

import math
from enum import IntEnum

import torch
from torch import Tensor

from dasl_core.data.views.color import color_matrix
from dasl_core.data.views.counters import uniform
from dasl_core.data.views.parameters import ViewParameters
from dasl_core.spec import ViewAugment

CROP_TRIES = 10  # as torchvision's RandomResizedCrop, which then falls back to a central crop
CROP_RATIO = (3 / 4, 4 / 3)
# SimCLR's strengths at jitter 1: 0.8 each, and 0.2 of a turn of hue.
JITTER, HUE_JITTER = 0.8, 0.2
BLUR_SIGMA = (0.1, 2.0)


class _Draw(IntEnum):
    """Which random number of an image decides what. A new one goes to the end, so that no view changes."""

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


def draw_view(
    valid_hw: Tensor, augment: ViewAugment, key: int, positions: Tensor, channels: int = 3
) -> ViewParameters:
    """Draw the parameters of one view.

    What an image gets is a function of the key, its position and its size: a rank draws for its own images.

    Args:
        valid_hw: (B, 2) int64, heights and widths of the images.
        key: of this view in this step, from `derive_seed`.
        positions: (B,) int64, of the images in the global batch.
        channels: bands of the images.
    """
    numbers = uniform(key, positions, max(_Draw) + 1)

    def happens(draw: _Draw, probability: float) -> Tensor:
        return numbers[:, draw] < probability

    def between(draw: _Draw, low: float, high: float) -> Tensor:
        return low + (high - low) * numbers[:, draw]

    mirrored = happens(_Draw.FLIP, augment.flip)
    upended = happens(_Draw.VERTICAL_FLIP, augment.vertical_flip)
    transposed = None
    if augment.rotate > 0:
        # Quarter turns, counterclockwise: an odd number mirrors columns and then exchanges them with rows.
        turns = 1 + (3 * numbers[:, _Draw.TURNS]).long()
        turns = turns * happens(_Draw.ROTATED, augment.rotate)
        transposed = turns % 2 == 1
        mirrored_first = (turns == 1) | (turns == 2)
        upended_first = (turns == 2) | (turns == 3)
        # Flips of the view, which come before the turn, are flips of the crop.
        mirrored, upended = mirrored ^ mirrored_first, upended ^ upended_first
    box = _crop_boxes(valid_hw, augment.crop_scale, numbers)
    for axis, flipped in enumerate((mirrored, upended)):
        start, extent = box[:, axis], box[:, axis + 2]
        box[:, axis] = torch.where(flipped, start + extent, start)
        box[:, axis + 2] = torch.where(flipped, -extent, extent)
    height, width = valid_hw.float().unbind(1)
    box = box / torch.stack([width, height, width, height], dim=1)

    strength = JITTER * augment.jitter
    active = happens(_Draw.JITTERED, augment.jitter_probability).float()
    brightness, contrast, saturation = (
        1 + active * between(draw, max(-1.0, -each), each)
        for draw, each in (
            (_Draw.BRIGHTNESS, strength),
            (_Draw.CONTRAST, strength),
            (_Draw.SATURATION, strength * augment.saturation),
        )
    )
    hue = active * between(_Draw.HUE, -0.5, 0.5) * 2 * HUE_JITTER * augment.jitter
    colorful = (~happens(_Draw.GRAYSCALE, augment.grayscale)).float()
    sigma = solarized = dropped = None
    if augment.blur > 0:
        sigma = happens(_Draw.BLURRED, augment.blur) * between(_Draw.SIGMA, *BLUR_SIGMA)
    if augment.solarize > 0:
        solarized = happens(_Draw.SOLARIZED, augment.solarize)
    if augment.channel_drop > 0 and channels > 1:
        band = (channels * numbers[:, _Draw.BAND]).long()
        dropped = torch.where(happens(_Draw.DROPPED, augment.channel_drop), band, -1)
    return ViewParameters(
        box,
        color_matrix(brightness, saturation * colorful, hue),
        contrast,
        sigma,
        solarized,
        augment.interpolation,
        transposed,
        dropped,
        whole_pixels=True,
    )


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
