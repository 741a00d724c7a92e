"""Views rendered image by image on a CPU equal those of a batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2.functional import InterpolationMode, resized_crop

from dasl_core.data import augment
from dasl_core.data.augment import ONE_BY_ONE_FROM, ViewParameters, draw_view, render
from dasl_core.data.blur import blur_all, blur_one
from dasl_core.data.resampling import FILTERS, crop_all, crop_each
from dasl_core.spec import Normalization, ViewAugment
from dasl_core.spec.fields import EIGHT_BIT, Interpolation

WINDOWS = {
    torch.uint8: EIGHT_BIT,
    torch.uint16: (200.0, 4000.0),
    torch.int16: (-1000.0, 2000.0),
    torch.float32: (100.0, 3000.0),
}
SIZES = (ONE_BY_ONE_FROM, 100)  # whole blocks of rows, and not


def canvases(dtype: torch.dtype, channels: int = 3, count: int = 8, side: int = 120) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    high = 256 if dtype == torch.uint8 else 4096
    return torch.randint(0, high, (count, channels, side, side), generator=generator).to(dtype)


def drawn(interpolation: Interpolation, count: int = 8) -> tuple[Tensor, ViewParameters]:
    """Sizes of images, and a view of them in which every operation occurs."""
    generator = torch.Generator().manual_seed(2)
    valid_hw = torch.randint(20, 121, (count, 2), generator=generator)
    recipe = ViewAugment(
        crop_scale=(0.05, 1.0),
        interpolation=interpolation,
        jitter=0.5,
        saturation=1.0,
        grayscale=0.2,
        blur=0.5,
        solarize=0.3,
    )
    return valid_hw, draw_view(valid_hw, recipe, generator)


@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize("dtype", WINDOWS)
@pytest.mark.parametrize("channels", [1, 3, 5])
def test_image_by_image_equals_batch(
    dtype: torch.dtype,
    channels: int,
    interpolation: Interpolation,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    normalization = Normalization(
        mean=(0.5,) * channels, std=(0.25,) * channels, window=WINDOWS[dtype]
    )
    images = canvases(dtype, channels)
    valid_hw, view = drawn(interpolation)
    view = view.to(torch.device("cpu"), torch.float64)
    for size in SIZES:
        views = []
        for first in (0, 1000):
            monkeypatch.setattr(augment, "ONE_BY_ONE_FROM", first)
            views.append(render(images, valid_hw, view, size, torch.float64, normalization))
        # Solarization is not continuous: a value that rounds to the other side of one half moves by that much.
        # Deep pixels are resampled in float32.
        torch.testing.assert_close(*views, rtol=0, atol=1e-5)


@pytest.mark.parametrize("sigma", [0.1, 0.5, 1.0, 2.0])
def test_blur_of_one_image_equals_that_of_a_batch(sigma: float) -> None:
    image = canvases(torch.uint8, side=224, count=1).float() / 255
    expected = blur_all(image, torch.tensor([sigma]))[0]
    torch.testing.assert_close(blur_one(image[0], sigma), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("crop", [crop_all, crop_each])
@pytest.mark.parametrize("interpolation", FILTERS)
def test_crop_equals_antialiased_resized_crop_of_torchvision(
    crop: Callable[..., Tensor], interpolation: Interpolation
) -> None:
    """Except for the border: torchvision cuts the box before it filters, we filter the image."""
    image = canvases(torch.float32, count=1)
    top, left, height, width = 10, 15, 90, 100
    expected = resized_crop(
        image.double(), top, left, height, width, [64, 64],
        interpolation=InterpolationMode(interpolation), antialias=True,
    )  # fmt: skip
    box = torch.tensor([[left, top, width, height]]).double() / 120
    ours = crop(image, torch.tensor([[120, 120]]), box, 64, interpolation)
    inner = (..., slice(3, -3), slice(3, -3))
    torch.testing.assert_close(ours[inner], expected[inner], rtol=0, atol=1e-6)


@pytest.mark.parametrize("first", [0, 1000])
def test_all_levels_of_12_bits_stay_distinct(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(augment, "ONE_BY_ONE_FROM", first)
    image = torch.arange(4096).to(torch.uint16).view(1, 1, 64, 64)
    valid_hw = torch.tensor([[64, 64]])
    normalization = Normalization(mean=(0.0,), std=(1.0,), window=(0.0, 4095.0))
    view = augment.central_view(valid_hw)
    levels = render(image, valid_hw, view, 64, torch.float32, normalization)
    assert len(levels.unique()) == 4096
