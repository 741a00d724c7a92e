"""Views of a batch of canvases, computed on the device of the canvases.

A GPU renders a batch at once: crops by matrix multiplication, and each random operation on the images for which it
was drawn. Their selection is copied from pinned memory, so nothing waits for the GPU. A CPU renders a few images at a
time, which stay in its caches, on all of its threads, and resamples 8-bit crops of 64 pixels and more in 8 bits, as
Pillow and torchvision do.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from dasl_core.data.views.blur import blur_all, blur_one
from dasl_core.data.views.color import constant, recolor, solarize
from dasl_core.data.views.parameters import ViewParameters
from dasl_core.data.views.resampling import crop_all, crop_each, crop_pixels
from dasl_core.data.views.threads import for_each
from dasl_core.spec import Normalization
from dasl_core.spec.fields import EIGHT_BIT
from dasl_core.tensors import tf32_products, to_device

# Size of views from which a CPU crops images one by one; smaller ones are faster in a batch.
ONE_BY_ONE_FROM = 64
# Size from which blurs are done one by one; smaller views use convolutions.
BLUR_ONE_BY_ONE_FROM = 128
# Number of values that a CPU renders at a time: about a core's cache.
NUMBERS_AT_A_TIME = 1 << 17
# Bytes of canvases that a GPU converts to floating point at a time.
BYTES_AT_A_TIME = 1 << 28


def render(
    canvases: Tensor,
    valid_hw: Tensor,
    view: ViewParameters,
    image_size: int,
    dtype: torch.dtype,
    normalization: Normalization,
) -> Tensor:
    """Render one view of each canvas; see `render_views`."""
    return render_views(canvases, valid_hw, [(view, image_size)], dtype, normalization)[0]


def render_views(
    canvases: Tensor,
    valid_hw: Tensor,
    views: Sequence[tuple[ViewParameters, int]],
    dtype: torch.dtype,
    normalization: Normalization,
) -> list[Tensor]:
    """Render views of each canvas.

    Args:
        canvases: (B, C, S, S) raw values of any `PixelType`, on the device.
        valid_hw: (B, 2) height and width of the image within its canvas, on the CPU.
        views: parameters and pixels a side of each view, or of V views of a size.
        dtype: floating-point type of the result. Computation is in float32, or float64 for that.
        normalization: the network's normalization of C channels; its window maps raw values to [0, 1], and
            values outside of it are clamped before resampling.

    Returns:
        (B or V * B, C, size, size) for each, normalized.
    """
    precision = torch.float64 if dtype == torch.float64 else torch.float32
    rendered = [
        torch.empty(
            len(view.box), canvases.shape[1], size, size, dtype=precision, device=canvases.device
        )
        for view, size in views
    ]
    if canvases.device.type == "cpu":
        render_on_cpu(canvases, valid_hw, views, rendered, normalization)
    else:
        render_batch(canvases, valid_hw, views, rendered, normalization)
    return [images.to(dtype) for images in rendered]


def render_on_cpu(
    canvases: Tensor,
    valid_hw: Tensor,
    views: Sequence[tuple[ViewParameters, int]],
    rendered: Sequence[Tensor],
    normalization: Normalization,
) -> None:
    """Render into `rendered`, a few images of a view at a time; see `render_views`."""
    count, channels = canvases.shape[:2]

    def work(item: tuple[int, slice, slice]) -> None:
        number, rows, of_view = item
        (view, size), result = views[number], rendered[number][of_view]
        view, part, hw = view.rows(of_view), canvases[rows], valid_hw[rows]
        if view.whole_pixels and size >= ONE_BY_ONE_FROM:
            images = torch.empty_like(result)
            crop_pixels(part, hw, view, images, normalization.window)
        else:
            part = _clamped(part, result.dtype, normalization.window)
            box = view.box.to(result.dtype)
            if size >= ONE_BY_ONE_FROM:
                images = crop_each(part, hw, box, size, view.interpolation)
            else:
                images = crop_all(
                    part, hw, box[None], size, view.interpolation, whole_pixels=view.whole_pixels
                )[0].contiguous()
                images = _transpose(images, view)
        _finish(images, view, normalization, result)

    items = []
    for number, (view, size) in enumerate(views):
        step = max(1, NUMBERS_AT_A_TIME // (channels * size * size))
        for first in range(0, len(view.box), count):
            for start in range(0, count, step):
                stop = min(start + step, count)
                items.append((number, slice(start, stop), slice(first + start, first + stop)))
    for_each(work, items)


def render_batch(
    canvases: Tensor,
    valid_hw: Tensor,
    views: Sequence[tuple[ViewParameters, int]],
    rendered: Sequence[Tensor],
    normalization: Normalization,
) -> None:
    """Render into `rendered`, all images at once; see `render_views`.

    Pixels are converted once for all views, in parts that bound the memory. A GPU multiplies 8-bit pixels in TF32, which
    has them exactly and rounds the filter: an error below 0.4 of their 255 levels.
    """
    precision, device = rendered[0].dtype, canvases.device
    sizes_of_images = to_device(valid_hw, device)
    step = max(1, BYTES_AT_A_TIME // (canvases[0].numel() * precision.itemsize))
    by_view = (-1, len(canvases))
    boxes = [to_device(view.box.to(precision), device).unflatten(0, by_view) for view, _ in views]
    # The layout that `crop_all` multiplies, copied while a value has a byte or two.
    canvases = canvases.transpose(1, 2).contiguous().transpose(1, 2)
    levels = _has_levels(canvases, normalization.window)
    with tf32_products(device) if levels else nullcontext():
        for start in range(0, len(canvases), step):
            rows = slice(start, start + step)
            part = _clamped(canvases[rows], precision, normalization.window)
            for (view, size), box, images in zip(views, boxes, rendered, strict=True):
                images.unflatten(0, by_view)[:, rows] = crop_all(
                    part,
                    sizes_of_images[rows],
                    box[:, rows],
                    size,
                    view.interpolation,
                    whole_pixels=view.whole_pixels,
                )
    for (view, _), images in zip(views, rendered, strict=True):
        _finish(_transpose(images, view), view, normalization, images)


def _transpose(images: Tensor, view: ViewParameters) -> Tensor:
    """Transpose the images for which it was drawn."""
    if view.transposed is None:
        return images
    # A copy: the caller may write its result over the images.
    return _change(images, view.transposed, lambda pixels, _: pixels.mT.contiguous())


def _clamped(canvases: Tensor, dtype: torch.dtype, window: tuple[float, float]) -> Tensor:
    """Convert raw values to a floating-point type, clamped to the window."""
    pixels = canvases.to(dtype)
    return pixels if _has_levels(canvases, window) else pixels.clamp(*window)


def _has_levels(canvases: Tensor, window: tuple[float, float]) -> bool:
    """Whether the values are 8-bit levels, of which the window cuts none."""
    return canvases.dtype == torch.uint8 and window == EIGHT_BIT


def _finish(
    images: Tensor, view: ViewParameters, normalization: Normalization, result: Tensor
) -> None:
    """Turn crops (B, C, H, W) of raw values, which this may change, into normalized views in `result`."""
    low, high = normalization.window
    if low != 0:
        images.sub_(low)
    images.div_(high - low).clamp_(0, 1)  # the bicubic filter overshoots, and any may round

    def recolored(pixels: Tensor, rows: Tensor) -> Tensor:
        color, contrast = (
            to_device(values[rows].to(images.dtype), images.device)
            for values in (view.color, view.contrast)
        )
        return recolor(pixels, color, contrast)

    def blurred(pixels: Tensor, rows: Tensor) -> Tensor:
        assert view.sigma is not None
        sigma = view.sigma[rows]
        if images.device.type == "cpu" and images.shape[-1] >= BLUR_ONE_BY_ONE_FROM:
            for image, image_sigma in zip(pixels, sigma.tolist(), strict=True):
                blur_one(image, image_sigma, out=image)
            return pixels
        return blur_all(pixels, to_device(sigma.to(images.dtype), images.device))

    images = _change(images, view.recolored(), recolored)
    if view.sigma is not None:
        images = _change(images, view.sigma > 0, blurred)
    if view.solarized is not None:
        images = _change(images, view.solarized, lambda pixels, _: solarize(pixels))
    mean, std = (
        constant(values, images.dtype, images.device).view(-1, 1, 1)
        for values in (normalization.mean, normalization.std)
    )
    torch.sub(images, mean, out=result).div_(std)
    if view.dropped is not None:
        rows = (view.dropped >= 0).nonzero().squeeze(1)
        index = (to_device(values, images.device) for values in (rows, view.dropped[rows]))
        result[tuple(index)] = 0


def _change(images: Tensor, mask: Tensor, change: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Change some of the images, in place unless all are selected.

    Args:
        mask: (B,) bool on the CPU, which images to change.
        change: returns new pixels from the selected pixels and their positions (on the CPU).
    """
    rows = mask.nonzero().squeeze(1)
    if len(rows) == len(images):
        return change(images, rows)
    if len(rows):
        index = to_device(rows, images.device)
        images.index_copy_(0, index, change(images.index_select(0, index), rows))
    return images
