"""Random views: unchanged properties are preserved, and changes stay within their bounds."""

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor
from torchvision.transforms import RandomResizedCrop

from dasl_core.data.views import ViewParameters, central_view, draw_view, render
from dasl_core.data.views.color import LUMA, RGB_TO_YIQ, recolor
from dasl_core.data.views.draw import uniform
from dasl_core.seeds import derive_seed
from dasl_core.spec import Normalization, ViewAugment
from dasl_core.spec.fields import Interpolation
from dasl_core.spec.normalization import IMAGENET

STILL = ViewAugment(
    crop_scale=(1.0, 1.0),
    interpolation="bilinear",
    flip=0,
    jitter=0,
    saturation=1,
    grayscale=0,
    blur=0.0,
    solarize=0.0,
)


def changed(**settings: object) -> ViewAugment:
    """Settings with only the given augmentations."""
    return ViewAugment.model_validate(STILL.model_dump() | settings)


def canvases(count: int = 4, side: int = 16, channels: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    shape = (count, channels, side, side)
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


def whole(images: Tensor) -> Tensor:
    """Valid heights and widths of images that fill their canvases."""
    count, _, height, width = images.shape
    return torch.tensor([[height, width]]).expand(count, 2)


def drawn(**changes: Any) -> ViewAugment:
    """SimCLR's recipe, resolved."""
    usual = {
        "crop_scale": (0.2, 1.0),
        "interpolation": "bilinear",
        "jitter": 0.5,
        "saturation": 1.0,
        "grayscale": 0.2,
        "blur": 0.0,
        "solarize": 0.0,
    }
    return ViewAugment.model_validate(usual | changes)


def draw(augment: ViewAugment, valid_hw: Tensor, seed: int = 0) -> ViewParameters:
    return draw_view(valid_hw, augment, seed, torch.arange(len(valid_hw)))


def pixels(
    images: Tensor, view: ViewParameters, size: int, valid_hw: Tensor | None = None
) -> Tensor:
    """Render a view in float64 and undo its normalization: values in [0, 1]."""
    valid_hw = whole(images) if valid_hw is None else valid_hw
    normalization = IMAGENET.with_channels(images.shape[1])
    rendered = render(images, valid_hw, view, size, torch.float64, normalization)
    mean, std = (
        torch.tensor(values, dtype=torch.float64).view(1, -1, 1, 1)
        for values in (normalization.mean, normalization.std)
    )
    return rendered * std + mean


def close(one: Tensor, other: Tensor, atol: float = 1e-6) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=atol)


# --- the central view


@pytest.mark.parametrize("channels", [1, 3])
def test_central_view_at_native_resolution_is_the_image(channels: int) -> None:
    images = canvases(channels=channels)
    close(pixels(images, central_view(whole(images)), 16), images.double() / 255)


@pytest.mark.parametrize(
    "normalization", [IMAGENET, Normalization(mean=(0.5, 0.4, 0.3), std=(0.5, 0.6, 0.7))]
)
def test_view_is_normalized_as_requested(normalization: Normalization) -> None:
    images = canvases()
    valid_hw = whole(images)
    rendered = render(images, valid_hw, central_view(valid_hw), 16, torch.float32, normalization)
    mean, std = (
        torch.tensor(values).view(1, 3, 1, 1) for values in (normalization.mean, normalization.std)
    )
    assert rendered.dtype == torch.float32
    close(rendered, (images / 255 - mean) / std, atol=1e-5)


@pytest.mark.parametrize(("height", "width"), [(8, 14), (14, 8)])
def test_central_view_is_the_largest_central_square(height: int, width: int) -> None:
    images = canvases(side=14)
    valid_hw = torch.tensor([[height, width]]).expand(4, 2)
    top, left = (height - 8) // 2, (width - 8) // 2
    square = images[:, :, top : top + 8, left : left + 8].double() / 255
    close(pixels(images, central_view(valid_hw), 8, valid_hw), square)


def test_central_view_equals_resize_and_center_crop_of_pillow() -> None:
    """Resize 32 and CenterCrop 28, as 256 and 224."""
    noise = np.random.default_rng(0).integers(0, 256, (64, 80, 3), dtype=np.uint8)
    resized = Image.fromarray(noise).resize((40, 32), Image.Resampling.BILINEAR)
    square = np.array(resized.crop((6, 2, 34, 30)))
    canvas = torch.zeros(1, 3, 80, 80, dtype=torch.uint8)
    canvas[0, :, :64] = torch.from_numpy(noise).permute(2, 0, 1)
    valid_hw = torch.tensor([[64, 80]])
    ours = pixels(canvas, central_view(valid_hw, 0.875), 28, valid_hw)
    # Pillow rounds rows and then columns to 8 bits.
    close(ours[0], torch.from_numpy(square).permute(2, 0, 1).double() / 255, atol=1 / 255)


# --- resampling


def crop(*box: float) -> ViewParameters:
    """A view of one image that is only cropped, to x, y, width, height as shares of it."""
    return ViewParameters(torch.tensor([box]).double(), torch.eye(3)[None], torch.ones(1), None)


@given(
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.integers(1, 24),
    st.tuples(*[st.floats(0.05, 1)] * 2),
    st.tuples(*[st.floats(0, 1)] * 2),
    st.booleans(),
    st.sampled_from(["bilinear", "bicubic"]),
)
@example((40, 40), 8, (1.0, 1.0), (0.0, 0.0), False, "bilinear")
@example((9, 31), 24, (0.3, 0.2), (1.0, 1.0), True, "bicubic")
@settings(deadline=None, max_examples=80)
def test_crop_equals_resize_of_pillow(
    hw: tuple[int, int],
    size: int,
    shares: tuple[float, float],
    places: tuple[float, float],
    flip: bool,
    interpolation: Interpolation,
) -> None:
    image = canvases(1, side=44)
    height, width = hw
    left, top = (place * (1 - share) for place, share in zip(places, shares, strict=True))
    right, bottom = left + shares[0], top + shares[1]
    box = (left * width, top * height, min(right, 1) * width, min(bottom, 1) * height)
    references = [
        np.asarray(
            Image.fromarray(plane.numpy().astype(np.float32)).resize(
                (size, size), Image.Resampling[interpolation.upper()], box=box
            )
        )
        for plane in image[0, :, :height, :width]
    ]
    reference = torch.from_numpy(np.stack(references)).double()[None] / 255
    view = crop(right if flip else left, top, -shares[0] if flip else shares[0], shares[1])
    view = replace(view, interpolation=interpolation)
    reference = reference.clamp(0, 1)  # an overshoot, as for 8 bits
    ours = pixels(image, view, size, torch.tensor([hw]))
    # Pillow rounds a box to float32.
    close(ours.flip(3) if flip else ours, reference, atol=1e-4)


def test_details_finer_than_the_view_vanish() -> None:
    """A local crop of DINO: 40% of an image of 448 pixels, reduced by 2.95 to 96."""
    wave = 127.5 + 127.5 * torch.sin(2 * math.pi * torch.arange(448) / 3.1)
    stripes = wave.to(torch.uint8).expand(1, 3, 448, 448)
    share = math.sqrt(0.4)
    for image in (stripes, stripes.mT):
        view = pixels(image, crop(0.1, 0.1, share, share), 96)
        assert view.mean().item() == pytest.approx(0.5, abs=0.01)
        assert view.std().item() < 0.01


# --- crops and flips


def test_flip_keeps_crop() -> None:
    images = canvases()
    crops = [draw(changed(crop_scale=(0.2, 0.5), flip=flip), whole(images)) for flip in (0, 1)]
    plain, flipped = (pixels(images, crop, 16) for crop in crops)
    close(flipped, plain.flip(3))


def test_drawn_orientations_are_flips_and_turns_of_the_image() -> None:
    images = canvases(count=1, side=12).expand(256, -1, -1, -1).contiguous()
    view = draw(changed(flip=0.5, vertical_flip=0.5, rotate=0.75), whole(images))
    assert view.transposed is not None
    shown = pixels(images, view, 12)
    image = images[0].double() / 255
    eight = torch.stack(
        [torch.rot90(each, turns, (1, 2)) for each in (image, image.flip(2)) for turns in range(4)]
    )
    which = (shown[:, None] - eight).abs().amax(dim=(2, 3, 4)).min(dim=1)
    assert which.values.max() < 1e-6
    counts = torch.bincount(which.indices, minlength=8)
    assert counts.min() > 16  # 32 each


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_rotation_turns_what_is_flipped(turns: int) -> None:
    images = canvases(count=64, side=12)
    flipped = draw(changed(flip=0.5, vertical_flip=0.5), whole(images))
    turned = draw(changed(flip=0.5, vertical_flip=0.5, rotate=1.0), whole(images))
    before, after = pixels(images, flipped, 12), pixels(images, turned, 12)
    same = (torch.rot90(before, turns, (2, 3)) - after).abs().amax(dim=(1, 2, 3)) < 1e-6
    assert 10 < same.sum() < 35  # a third


def test_flips_and_rotations_have_their_probabilities() -> None:
    valid_hw = torch.full((4000, 2), 9)
    mirrored = draw(changed(flip=0.5), valid_hw).box[:, 2] < 0
    assert mirrored.float().mean().item() == pytest.approx(0.5, abs=0.03)
    upended = draw(changed(vertical_flip=0.2), valid_hw).box[:, 3] < 0
    assert upended.float().mean().item() == pytest.approx(0.2, abs=0.02)
    turned = draw(changed(rotate=0.6), valid_hw)
    assert turned.transposed is not None
    assert turned.transposed.float().mean().item() == pytest.approx(0.4, abs=0.03)
    half = ~turned.transposed & (turned.box[:, 2] < 0)
    assert half.float().mean().item() == pytest.approx(0.2, abs=0.02)
    assert draw(changed(), valid_hw).transposed is None


@pytest.mark.parametrize("channels", [2, 3, 5])
def test_dropped_band_is_the_mean_that_the_network_expects(channels: int) -> None:
    images = canvases(count=300, channels=channels)
    recipe = changed(channel_drop=0.5)
    view = draw_view(whole(images), recipe, 3, torch.arange(300), channels)
    normalization = Normalization(mean=(0.4,) * channels, std=(0.2,) * channels)
    shown = render(images, whole(images), view, 16, torch.float32, normalization)
    plain = render(
        images, whole(images), replace(view, dropped=None), 16, torch.float32, normalization
    )
    dropped = (shown == 0).all(dim=3).all(dim=2)
    assert dropped.sum(dim=1).max() == 1
    assert dropped.any(dim=1).float().mean().item() == pytest.approx(0.5, abs=0.08)
    assert (dropped.sum(dim=0) > 0.6 * dropped.sum() / channels).all()
    assert torch.equal(shown[~dropped], plain[~dropped])


def test_only_band_is_never_dropped() -> None:
    view = draw_view(torch.full((9, 2), 9), changed(channel_drop=1.0), 0, torch.arange(9), 1)
    assert view.dropped is None


@pytest.mark.parametrize("size", [5, 16, 40])
def test_views_contain_no_pixels_outside_image(size: int) -> None:
    generator = torch.Generator().manual_seed(3)
    valid_hw = torch.randint(1, 17, (256, 2), generator=generator)
    inside = (
        (torch.arange(16)[:, None] < valid_hw[:, :1, None])
        & (torch.arange(16) < valid_hw[:, 1:, None])
    )[:, None]
    images = canvases(256)
    results = [
        pixels(torch.where(inside, images, fill).to(torch.uint8), view, size, valid_hw)
        for fill in (0, 255)
        for view in (draw(drawn(blur=0.5), valid_hw),)
    ]
    close(results[0], results[1], atol=1e-9)
    assert results[0].min() > -1e-9
    assert results[0].max() < 1 + 1e-9


def test_crops_are_distributed_as_in_torchvision() -> None:
    scale, ratio = (0.2, 1.0), (3 / 4, 4 / 3)
    for height, width in ((20, 20), (10, 30)):
        torch.manual_seed(0)
        picture = torch.empty(1, 100 * height, 100 * width)  # large: torchvision rounds to pixels
        drawn = [
            RandomResizedCrop.get_params(picture, list(scale), list(ratio)) for _ in range(4000)
        ]
        reference = torch.tensor(drawn).double()[:, 2:]  # height and width of each crop
        reference /= 100 * torch.tensor([height, width])
        valid_hw = 100 * torch.tensor([[height, width]]).expand(4000, 2)
        box = draw(changed(crop_scale=scale), valid_hw).box.double()
        ours = box[:, [3, 2]]
        for statistic in (torch.mean, torch.std):
            close(statistic(ours, dim=0), statistic(reference, dim=0), atol=0.012)
        assert (box[:, :2] >= 0).all()
        assert (box[:, :2] + box[:, 2:] <= 1 + 1e-6).all()
        # Positions are uniform: the mean center of all crops is the center of the image.
        close((box[:, :2] + box[:, 2:] / 2).mean(dim=0), torch.full((2,), 0.5).double(), atol=0.01)


# --- colors


@pytest.mark.parametrize("channels", [1, 3])
def test_zero_jitter_keeps_colors(channels: int) -> None:
    images = canvases(channels=channels)
    for augment in (
        changed(jitter=0, jitter_probability=1),
        changed(jitter=1, jitter_probability=0),
    ):
        close(pixels(images, draw(augment, whole(images)), 16), images.double() / 255)


def test_grayscale_makes_channels_equal_to_the_luminance() -> None:
    images = canvases()
    gray = pixels(images, draw(changed(grayscale=1), whole(images)), 16)
    close(gray[:, 0], gray[:, 1])
    close(gray[:, 0], gray[:, 2])
    luminance = (images.double() / 255 * torch.tensor(LUMA).double().view(1, 3, 1, 1)).sum(dim=1)
    close(gray[:, 0], luminance)


def test_hue_and_saturation_keep_luminance_and_gray() -> None:
    strength = 0.5
    color = draw(changed(jitter=strength, jitter_probability=1), torch.full((4000, 2), 9)).color
    luma = torch.tensor(LUMA)
    brightness = luma @ color @ torch.ones(3)  # luminance of a white pixel
    assert 1 - 0.8 * strength <= brightness.min() < 1 - 0.7 * strength
    assert 1 + 0.7 * strength < brightness.max() <= 1 + 0.8 * strength + 1e-6
    assert brightness.mean().item() == pytest.approx(1, abs=0.02)
    close(luma @ color, brightness[:, None] * luma, atol=1e-5)
    close(color @ torch.ones(3), brightness[:, None].expand(-1, 3), atol=1e-5)
    # Hue rotates the chroma plane: without brightness and saturation the map would be a rotation.
    red = color @ torch.tensor([1.0, 0.0, 0.0]) / brightness[:, None]
    assert (red[:, 1] > 0.05).any()
    assert (red[:, 2] > 0.05).any()


def test_saturation_is_jittered_less_than_brightness() -> None:
    augment = changed(jitter=0.5, saturation=0.5, jitter_probability=1)
    view = draw(augment, torch.full((4000, 2), 9))
    luma = torch.tensor(LUMA)
    brightness = luma @ view.color @ torch.ones(3)
    # The chroma of a color is scaled by brightness and saturation, and rotated by hue.
    to_chroma = torch.tensor(RGB_TO_YIQ)[1:]
    color = torch.tensor([0.9, 0.2, 0.4])
    chroma = (to_chroma @ (view.color @ color).T).norm(dim=0) / (to_chroma @ color).norm()
    saturation = chroma / brightness
    assert 0.8 <= saturation.min() < 0.81
    assert 1.19 < saturation.max() <= 1.2 + 1e-5
    assert 0.6 <= brightness.min() < 0.61


def test_jitter_of_gray_image_does_not_depend_on_channels() -> None:
    gray = canvases(64, channels=1)
    augment = changed(jitter=0.5, jitter_probability=1)
    one = pixels(gray, draw(augment, whole(gray)), 16)
    three = pixels(gray.repeat(1, 3, 1, 1), draw(augment, whole(gray)), 16)
    close(one.expand_as(three), three, atol=1e-5)


def test_contrast_without_color_stretches_around_the_mean_of_each_band() -> None:
    """Bands such as temperature and height have no common scale."""
    images = (
        torch.rand(4, 5, 8, 8, dtype=torch.float64)
        * torch.tensor([1, 0.01, 1, 0.5, 1])[:, None, None]
    )
    eye = torch.eye(3, dtype=torch.float64).expand(4, 3, 3)
    flat = recolor(images.clone(), eye, torch.zeros(4, dtype=torch.float64))
    close(flat, images.mean(dim=(2, 3), keepdim=True).expand_as(flat))


# --- blur


def test_blur_keeps_flat_images() -> None:
    flat = torch.full_like(canvases(8, side=40), 200)
    close(pixels(flat, draw(changed(blur=1), whole(flat)), 40), flat.double() / 255)


def test_blur_is_normalized_gaussian() -> None:
    point = torch.zeros(1, 1, 41, 41, dtype=torch.uint8)
    point[0, 0, 20, 20] = 255
    box = torch.tensor([[0.0, 0.0, 1.0, 1.0]])
    view = ViewParameters(box, torch.eye(3)[None], torch.ones(1), torch.tensor([0.8]))
    spread = pixels(point, view, 41)[0, 0]
    assert spread.sum().item() == pytest.approx(1, abs=1e-9)
    assert (spread[20, 21] / spread[20, 20]).item() == pytest.approx(
        torch.tensor(-1 / (2 * 0.8**2)).exp().item(), rel=1e-6
    )
    close(spread, spread.T, atol=1e-12)


def test_only_drawn_images_are_blurred() -> None:
    images = canvases(32)
    view = draw(changed(blur=0.5), whole(images))
    assert view.sigma is not None
    drawn = view.sigma > 0
    assert 5 < int(drawn.sum()) < 27
    sharp = images.double() / 255
    changes = (pixels(images, view, 16) - sharp).abs().amax(dim=(1, 2, 3))
    assert (changes[~drawn] < 1e-6).all()
    assert (changes[drawn & (view.sigma > 0.5)] > 1e-3).all()


# --- random streams


ALL = drawn(blur=0.5, solarize=0.5, vertical_flip=0.5, rotate=0.5, channel_drop=0.5)


@given(
    st.lists(st.tuples(st.integers(1, 90), st.integers(1, 90)), min_size=1, max_size=12),
    st.integers(0, 2**63 - 1),
    st.integers(1, 64),
    st.data(),
)
@settings(deadline=None, max_examples=60)
def test_what_an_image_gets_does_not_depend_on_the_others(
    sizes: list[tuple[int, int]], key: int, channels: int, data: st.DataObject
) -> None:
    """A rank draws for its own images, whatever the other ranks have."""
    valid_hw = torch.tensor(sizes)
    everything = draw_view(valid_hw, ALL, key, torch.arange(len(sizes)), channels)
    chosen = data.draw(st.lists(st.integers(0, len(sizes) - 1), min_size=1, unique=True))
    positions = torch.tensor(chosen)
    own = draw_view(valid_hw[positions], ALL, key, positions, channels)
    expected = everything.rows(positions)
    for field in fields(ViewParameters):
        one, other = getattr(own, field.name), getattr(expected, field.name)
        assert torch.equal(one, other) if isinstance(one, Tensor) else one == other, field.name
    edges = valid_hw[positions][:, [1, 0]].double()
    pixels = own.box.double() * edges.repeat(1, 2)
    assert (pixels - pixels.round()).abs().max() < 1e-4
    corners = torch.stack([pixels[:, :2], pixels[:, :2] + pixels[:, 2:]]).round()
    assert corners.min() >= 0
    assert (corners.amax(dim=0) <= edges).all()
    assert (pixels[:, 2:].round() != 0).all()


def test_numbers_are_uniform_and_independent() -> None:
    numbers = uniform(derive_seed(7, "views", 3, 1), torch.arange(4096), 37).double()
    assert 0 <= numbers.min() < numbers.max() < 1
    counts = torch.histc(numbers, 64, 0, 1)
    # Of chi-squared with 63 degrees of freedom, 99.99 % is below 116.
    expected = numbers.numel() / 64
    assert ((counts - expected) ** 2 / expected).sum() < 116
    for one in (numbers, numbers.T):  # draws of an image, and images of a draw
        correlations = torch.corrcoef(one[:37, :4096] if one is numbers.T else one[:37])
        deviation = 5 / math.sqrt(one.shape[1])
        assert (correlations - torch.eye(37)).abs().max() < deviation
    other = uniform(derive_seed(7, "views", 4, 1), torch.arange(4096), 37).double()
    assert abs(torch.corrcoef(torch.stack([numbers.flatten(), other.flatten()]))[0, 1]) < 0.02
    assert len(numbers.unique()) > 0.99 * numbers.numel()


def test_further_draws_change_no_earlier_ones() -> None:
    positions = torch.tensor([5, 0, 10**9])
    assert torch.equal(uniform(1, positions, 40)[:, :7], uniform(1, positions, 7))


def test_settings_change_only_what_they_name() -> None:
    valid_hw = torch.full((64, 2), 50)
    plain, more = draw(drawn(), valid_hw), draw(drawn(blur=1.0, channel_drop=1.0), valid_hw)
    for name in ("box", "color", "contrast"):
        assert torch.equal(getattr(plain, name), getattr(more, name))


def test_views_of_extreme_image_shapes() -> None:
    valid_hw = torch.tensor([[1, 1], [1, 16], [16, 1], [2, 16]])
    for view in (draw(drawn(blur=1.0), valid_hw), central_view(valid_hw)):
        assert pixels(canvases(), view, 8, valid_hw).isfinite().all()
