"""The ways to render views agree: a few images at a time on a CPU, a batch as on a GPU, and torchvision."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision.transforms.v2.functional import InterpolationMode, resized_crop

from dasl_core.data.views import ViewParameters, central_view, draw_view, render, render_views
from dasl_core.data.views.color import LUMA, constant
from dasl_core.data.views.rendering import render_batch
from dasl_core.data.views.resampling import FILTERS, crop_all, crop_each
from dasl_core.data.views.threads import for_each
from dasl_core.spec import Normalization, ViewAugment
from dasl_core.spec.fields import EIGHT_BIT, Interpolation

WINDOWS = {
    torch.uint8: EIGHT_BIT,
    torch.uint16: (200.0, 4000.0),
    torch.int16: (-1000.0, 2000.0),
    torch.float32: (100.0, 3000.0),
}
SIZES = (32, 64, 100)
RECIPE = ViewAugment(
    crop_scale=(0.05, 1.0),
    interpolation="bilinear",
    vertical_flip=0.5,
    rotate=0.5,
    jitter=0.5,
    saturation=1.0,
    grayscale=0.2,
    blur=0.5,
    solarize=0.3,
    channel_drop=0.3,
)


def canvases(dtype: torch.dtype, channels: int = 3, count: int = 8, side: int = 120) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    high = 256 if dtype == torch.uint8 else 4096
    return torch.randint(0, high, (count, channels, side, side), generator=generator).to(dtype)


def drawn(
    interpolation: Interpolation, channels: int = 3, count: int = 8
) -> tuple[Tensor, ViewParameters]:
    """Sizes of images, and a view of them in which every operation occurs."""
    generator = torch.Generator().manual_seed(2)
    valid_hw = torch.randint(20, 121, (count, 2), generator=generator)
    view = draw_view(valid_hw, RECIPE, 2, torch.arange(count), channels)
    return valid_hw, replace(view, interpolation=interpolation)


def normalization_of(channels: int, window: tuple[float, float] = EIGHT_BIT) -> Normalization:
    return Normalization(mean=(0.5,) * channels, std=(0.25,) * channels, window=window)


def in_a_batch(
    images: Tensor, valid_hw: Tensor, view: ViewParameters, size: int, of: Normalization
) -> Tensor:
    """Render in float64 as on a GPU."""
    result = torch.empty(*images.shape[:2], size, size, dtype=torch.float64)
    render_batch(images, valid_hw, [(view, size)], [result], of)
    return result


def test_batch_in_which_every_image_is_transposed() -> None:
    images, of = canvases(torch.uint8), normalization_of(3)
    valid_hw = torch.full((8, 2), 120)
    view = replace(central_view(valid_hw), transposed=torch.ones(8, dtype=torch.bool))
    straight = in_a_batch(images.mT.contiguous(), valid_hw, central_view(valid_hw), 40, of)
    torch.testing.assert_close(in_a_batch(images, valid_hw, view, 40, of), straight)


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize("dtype", WINDOWS)
@pytest.mark.parametrize("channels", [1, 3, 5])
def test_image_by_image_equals_batch(
    dtype: torch.dtype, channels: int, interpolation: Interpolation
) -> None:
    normalization = normalization_of(channels, WINDOWS[dtype])
    images = canvases(dtype, channels)
    before = images.clone()
    valid_hw, random = drawn(interpolation, channels)
    for view in (random, central_view(valid_hw, 0.8)):
        for size in SIZES:
            one = render(images, valid_hw, view, size, torch.float64, normalization)
            # A CPU sums the blur only as far as a view can show.
            torch.testing.assert_close(
                one, in_a_batch(images, valid_hw, view, size, normalization), rtol=0, atol=5e-4
            )
    assert torch.equal(images, before)


@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize("size", [32, 100])
def test_crops_in_eight_bits_equal_exact_ones(interpolation: Interpolation, size: int) -> None:
    # Within a range in which no overshoot of rows is cut before columns are filtered.
    images, normalization = canvases(torch.uint8) // 2 + 64, normalization_of(3)
    valid_hw, view = drawn(interpolation)
    view = replace(view, color=torch.eye(3).expand(8, 3, 3), contrast=torch.ones(8), solarized=None)
    ours = render(images, valid_hw, view, size, torch.float32, normalization)
    exact = render(images, valid_hw, view, size, torch.float64, normalization)
    # Rows and columns are rounded to 8 bits, one after the other.
    torch.testing.assert_close(ours.double(), exact, rtol=0, atol=1.5 / 255 / 0.25)


@pytest.mark.parametrize("interpolation", FILTERS)
def test_eight_bit_crop_equals_resized_crop_of_torchvision(interpolation: Interpolation) -> None:
    images = canvases(torch.uint8)
    valid_hw, view = drawn(interpolation)
    view = ViewParameters(
        view.box.abs(), torch.eye(3).expand(8, 3, 3), torch.ones(8), None, whole_pixels=True,
        interpolation=interpolation,
    )  # fmt: skip
    for flip in (False, True):
        box = draw_view(
            valid_hw, RECIPE.model_copy(update={"flip": float(flip), "vertical_flip": 0.0, "rotate": 0.0}),
            2, torch.arange(8),
        ).box  # fmt: skip
        ours = render(
            images, valid_hw, replace(view, box=box), 64, torch.float32, normalization_of(3)
        )
        for image, (height, width), place, view_of_it in zip(
            images, valid_hw.tolist(), box.tolist(), ours, strict=True
        ):
            x, across = round(place[0] * width), round(place[2] * width)
            left, span = min(x, x + across), abs(across)
            top, down = round(place[1] * height), round(place[3] * height)
            expected = resized_crop(
                image, top, left, down, span, [64, 64],
                interpolation=InterpolationMode(interpolation), antialias=True,
            ).float()  # fmt: skip
            expected = expected.flip(2) if flip else expected
            actual = (view_of_it * 0.25 + 0.5) * 255
            torch.testing.assert_close(actual, expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16])
def test_views_do_not_depend_on_threads_or_other_images(dtype: torch.dtype, threads: None) -> None:
    images, normalization = canvases(dtype), normalization_of(3, WINDOWS[dtype])
    valid_hw, view = drawn("bicubic")
    wanted = [(view, 24), (view, 100), (central_view(valid_hw), 64)]
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results.append(render_views(images, valid_hw, wanted, torch.float32, normalization))
        assert torch.get_num_threads() == count
    for others in results[1:]:
        assert all(torch.equal(*pair) for pair in zip(results[0], others, strict=True))
    for number, result in enumerate(results[0]):
        view, size = wanted[number]
        for i in range(8):
            row = slice(i, i + 1)
            alone = render(
                images[row], valid_hw[row], view.rows(row), size, torch.float32, normalization
            )
            torch.testing.assert_close(alone, result[row], rtol=0, atol=1e-5)


@pytest.mark.parametrize("count", [1, 2])
def test_views_are_rendered_in_the_mode_of_the_caller(count: int, threads: None) -> None:
    torch.set_num_threads(count)
    images, normalization = canvases(torch.uint8), normalization_of(3)
    valid_hw, view = drawn("bilinear")
    constant.cache_clear()
    with torch.inference_mode():
        inferred = render(images, valid_hw, view, 64, torch.float32, normalization)
    with torch.no_grad():
        without = render(images, valid_hw, view, 64, torch.float32, normalization)
    # What was created in inference mode and is kept must not spoil a later step.
    weight = torch.ones(3, 1, 1, requires_grad=True)
    views = render(images, valid_hw, view, 64, torch.float32, normalization)
    (weight * views).sum().backward()
    assert weight.grad is not None
    assert (inferred.is_inference(), without.is_inference(), views.is_inference()) == (
        True,
        False,
        False,
    )
    assert torch.equal(inferred, views)
    assert torch.equal(without, views)


@pytest.mark.parametrize("gradients", [True, False])
def test_threads_have_the_mode_of_the_caller(gradients: bool, threads: None) -> None:
    torch.set_num_threads(2)
    modes: list[tuple[bool, bool]] = []

    def work(item: int) -> None:
        modes.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))

    with torch.set_grad_enabled(gradients):
        for_each(work, range(4))
    with torch.inference_mode():
        for_each(work, range(4))
    assert modes == [(gradients, False)] * 4 + [(False, True)] * 4


def test_error_in_a_thread_is_raised(threads: None) -> None:
    torch.set_num_threads(2)
    valid_hw, view = drawn("bilinear")
    with pytest.raises(RuntimeError):
        render(
            canvases(torch.uint8),
            valid_hw,
            replace(view, color=view.color[:, :2]),
            64,
            torch.float32,
            normalization_of(3),
        )


def test_contrast_needs_no_second_look_at_the_pixels() -> None:
    """The mean luminance of a changed image is that of its mean color, changed."""
    images = canvases(torch.uint8)
    valid_hw = torch.full((8, 2), 120)
    view = replace(central_view(valid_hw), contrast=torch.full((8,), 0.25))
    ours = render(images, valid_hw, view, 120, torch.float64, normalization_of(3)) * 0.25 + 0.5
    pixels = images.double() / 255
    gray = (pixels * torch.tensor(LUMA).double().view(1, 3, 1, 1)).sum(1).mean(dim=(1, 2))
    expected = gray[:, None, None, None] + 0.25 * (pixels - gray[:, None, None, None])
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("crop", [crop_all, crop_each])
@pytest.mark.parametrize("interpolation", FILTERS)
def test_crop_equals_antialiased_resized_crop_of_torchvision(
    crop: Callable[..., Tensor], interpolation: Interpolation
) -> None:
    """At the border only where the box is cut before it is filtered."""
    image = canvases(torch.float32, count=1)
    top, left, height, width = 10, 15, 90, 100
    expected = resized_crop(
        image.double(), top, left, height, width, [64, 64],
        interpolation=InterpolationMode(interpolation), antialias=True,
    )  # fmt: skip
    box = torch.tensor([[left, top, width, height]]).double() / 120
    whole = {"whole_pixels": True} if crop is crop_all else {}
    box = box[None] if crop is crop_all else box
    ours = crop(image.double(), torch.tensor([[120, 120]]), box, 64, interpolation, **whole)
    ours = ours[0] if crop is crop_all else ours
    inner = (..., slice(3, -3), slice(3, -3)) if crop is crop_each else ...
    torch.testing.assert_close(ours[inner], expected[inner], rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.int16, torch.float32])
def test_values_outside_the_window_are_cut_before_a_crop_is_resampled(dtype: torch.dtype) -> None:
    """One hot pixel weighs no more than the brightest value of the window."""
    image = torch.full((1, 2, 64, 64), 20).to(dtype)
    image[0, :, 31, 31] = 120 if dtype == torch.uint8 else 30_000
    cut = image.clone()
    cut[0, :, 31, 31] = 40
    valid_hw, of = torch.tensor([[64, 64]]), normalization_of(2, (0.0, 40.0))
    recipe = RECIPE.model_copy(update={"crop_scale": (1.0, 1.0)})
    for view in (central_view(valid_hw), draw_view(valid_hw, recipe, 0, torch.arange(1), 2)):
        hot, cool = (render(each, valid_hw, view, 16, torch.float32, of) for each in (image, cut))
        assert torch.equal(hot, cool)


@pytest.mark.parametrize("size", [32, 64])
def test_all_levels_of_12_bits_stay_distinct(size: int) -> None:
    image = torch.arange(size * size).to(torch.uint16).view(1, 1, size, size)
    valid_hw = torch.tensor([[size, size]])
    normalization = Normalization(mean=(0.0,), std=(1.0,), window=(0.0, 4095.0))
    whole = ViewParameters(
        torch.tensor([[0.0, 0.0, 1.0, 1.0]]), torch.eye(3)[None], torch.ones(1), whole_pixels=True
    )
    for view in (central_view(valid_hw), whole):
        levels = render(image, valid_hw, view, size, torch.float32, normalization)
        assert len(levels.unique()) == size * size


class RoundedToTF32(TorchDispatchMode):
    """Rounds the factors of all products to the 11 significant bits of TF32, as a GPU does."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.products = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function.overloadpacket.__name__ == "bmm":
            self.products += 1
            args = tuple(
                ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32) for x in args
            )
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize("size", [24, 96, 224])
def test_products_in_tf32_change_less_than_half_a_level(
    interpolation: Interpolation, size: int
) -> None:
    images = canvases(torch.uint8).float()
    valid_hw, view = drawn(interpolation)

    def crop() -> Tensor:
        return crop_all(images, valid_hw, view.box[None], size, interpolation, whole_pixels=True)

    with RoundedToTF32() as mode:
        rounded = crop()
    assert mode.products == 2
    error = (rounded - crop()).abs().max()
    assert 0 < error < 0.4
