"""The first images of a training with their views, drawn by the code and random numbers of training."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dasl_core.data.canvases import Canvases
from dasl_core.data.index import DatasetIndex
from dasl_core.data.views import Draws
from dasl_core.machine import usable_cores
from dasl_core.spec import Normalization, ResolvedJobSpec
from dasl_core.spec.methods.config import MultiCropConfig
from dasl_core.train.data import TrainingData, open_canvases
from dasl_core.train.views import ViewMaker

MOST_IMAGES = 64
# Memory limit of a preview in bytes, without images that are being decoded.
MEMORY = 1_000_000_000
# Number of view-sized tensors while a view is rendered, rounded and converted to an image.
_COPIES = 6
_DECIMALS = 6  # of random numbers

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Row:
    """One image with its views, as values in [0, 1], rounded to 8 bits.

    Attributes:
        position: position in the index.
        step: step of the training, counted from 0.
        place: position in the global batch of this step.
        original: (C, H, W) uint8, the canvas of the views.
        views: (C, S, S) uint8, one for each view of the method.
        draws: random parameters of each view, JSON-ready.
        unreadable: why the image cannot be read and is black.
    """

    position: int
    step: int
    place: int
    original: Tensor
    views: list[Tensor]
    draws: list[dict[str, Any]]
    unreadable: str | None = None


class Drawing:
    """Draws the views of the first images of a spec's training, in its order.

    These are the images of the first batches of the first epoch, with the views of their steps: equal to a training
    on a CPU bit for bit, before rounding to 8 bits, and to one on a GPU up to rounding. Only these images are decoded,
    so the order differs if training excludes a damaged image.

    Attributes:
        views: views of the method.
        images: number of drawn images; fewer than requested if an epoch has fewer.
        unreadable: reasons of the unreadable images drawn so far, by key.
    """

    def __init__(
        self, spec: ResolvedJobSpec, index: DatasetIndex, images: int, *, threads: int | None = None
    ) -> None:
        """Choose the images.

        Args:
            images: number of images.
            threads: number of threads, and of images drawn at a time; None: one for each core.

        Raises:
            ValueError: the spec cannot run on this data, or the images are too many or too large; the message names
                the field.
        """
        if not 1 <= images <= MOST_IMAGES:
            raise ValueError(f"images: must be from 1 to {MOST_IMAGES}; given {images}.")
        self.spec, self.index = spec, index
        self._maker = ViewMaker(spec, CPU)
        self.views = self._maker.views
        self.unreadable: dict[str, str] = {}
        self._threads = threads or usable_cores()
        with closing(self._canvases()) as canvases:
            loader = _data(spec, canvases).loader
            self._order, self._batch_size = loader.order(0), loader.batch_size
            self.images = min(images, loader.steps * self._batch_size)
            self._at_a_time = self._fitting(canvases)

    def is_local(self, view: int) -> bool:
        """Whether a view, counted from 0, is a local crop."""
        return isinstance(self.spec.method, MultiCropConfig) and view >= 2

    def rows(self) -> Iterator[Row]:
        """Draw the images, a few at a time to bound memory."""
        with closing(self._canvases()) as canvases:
            for first in range(0, self.images, self._batch_size):
                end = min(self.images, first + self._batch_size)
                for start in range(first, end, self._at_a_time):
                    places = range(start - first, min(start + self._at_a_time, end) - first)
                    yield from self._draw(canvases, first // self._batch_size, places)

    def _draw(self, canvases: Canvases, step: int, places: range) -> Iterator[Row]:
        """Draw the images at some positions in a step's global batch."""
        backbone, first = self.spec.backbone, step * self._batch_size
        positions = self._order[first + places.start : first + places.stop]
        pixels, valid_hw = canvases.read(positions)
        at = torch.arange(places.start, places.stop)
        drawn = [
            ([view], draws)
            for views, together in self._maker.draw(valid_hw, step, at, backbone.in_channels)
            for view, draws in zip(views, together.split(len(views)), strict=True)
        ]
        # One after the other, because views of many bands take much memory.
        views = [
            _denormalized(self._maker.render(pixels, valid_hw, [view])[0], backbone.normalization)
            for view in drawn
        ]
        for number, (place, position) in enumerate(zip(places, positions.tolist(), strict=True)):
            height, width = valid_hw[number].tolist()
            reason = canvases.unreadable.get(position)
            if reason is not None:
                self.unreadable[self.index.paths[position]] = reason
            canvas, (low, high) = pixels[number, :, :height, :width], backbone.window
            yield Row(
                position,
                step,
                place,
                _rounded((canvas.to(torch.float32) - low).div_(high - low)),
                [view[number] for view in views],
                [_described(draws, number, backbone.in_channels) for _, draws in drawn],
                reason,
            )

    def _canvases(self) -> Canvases:
        return open_canvases(self.spec, self.index, None, self._threads)

    def _fitting(self, canvases: Canvases) -> int:
        """Return the number of images to draw at a time; a ValueError if a single one would take too much memory."""
        precision = max(4, self._maker.dtype.itemsize)
        canvas, areas = canvases.side**2, [view.image_size**2 for view in self.views]
        # Its values, a crop before and after clamping to the window, the image and its file.
        of_canvas = canvas * (canvases.itemsize + 2 * precision + 4)
        of_views = sum(areas) + max(areas) * _COPIES * precision
        image_bytes: int = canvases.channels * (of_canvas + of_views)
        if image_bytes > MEMORY:
            raise ValueError(
                f"backbone.image_size: an image of {canvases.channels} channels takes {image_bytes / 1e9:.1f} GB to be drawn, "
                f"and a preview may use {MEMORY / 1e9:g} GB. Choose a smaller size."
            )
        return min(self._threads, MEMORY // image_bytes)


def _data(spec: ResolvedJobSpec, canvases: Canvases) -> TrainingData:
    """Choose the training images as training does."""
    sets = {spec.dataset: canvases}
    if spec.evaluate.dataset is not None:  # then all images are for training
        sets[spec.evaluate.dataset] = canvases
    return TrainingData.select(spec, sets, control=None)


def _denormalized(views: Tensor, normalization: Normalization) -> Tensor:
    mean, std = (
        torch.tensor(values, dtype=views.dtype).view(-1, 1, 1)
        for values in (normalization.mean, normalization.std)
    )
    return _rounded((views * std).add_(mean))


def _rounded(values: Tensor) -> Tensor:
    """Round values to 8 bits, possibly in place."""
    return values.nan_to_num_(0.0).clamp_(0, 1).mul_(255).round_().to(torch.uint8)


def _described(draws: Draws, image: int, channels: int) -> dict[str, Any]:
    """Return the random parameters of one view of one image, in order of application, JSON-ready.

    The keys are the probabilities' fields in `augment`. Color operations are null for images without three channels.
    """

    def drawn(values: Tensor | None, neutral: float = 0) -> Any:
        value = neutral if values is None else values[image].item()
        return round(value, _DECIMALS) if isinstance(value, float) else value

    colored = channels == 3
    dropped = drawn(draws.dropped, -1)
    return {
        "crop": [round(edge) for edge in draws.crop[image].tolist()],
        "flip": drawn(draws.flip),
        "vertical_flip": drawn(draws.vertical_flip),
        "rotate": 90 * drawn(draws.turns),
        "brightness": drawn(draws.brightness),
        "saturation": drawn(draws.saturation) if colored else None,
        "hue": drawn(draws.hue) if colored else None,
        "grayscale": drawn(draws.grayscale) if colored else None,
        "contrast": drawn(draws.contrast),
        "blur": drawn(draws.sigma),
        "solarize": bool(drawn(draws.solarized)),
        "channel_drop": None if dropped < 0 else dropped,
    }
