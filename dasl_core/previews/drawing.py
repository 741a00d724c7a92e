"""The first images of a training with their views, drawn by the code and the random numbers that train on them."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dasl_core.data.canvases import Canvases
from dasl_core.data.index import DatasetIndex
from dasl_core.data.loader import Batch
from dasl_core.machine import usable_cores
from dasl_core.spec import Normalization, ResolvedJobSpec
from dasl_core.spec.methods.config import ResolvedMultiCropConfig
from dasl_core.train.build import build_view_maker
from dasl_core.train.data import TrainingData, field_that_needs_classes
from dasl_core.train.precision import weight_dtype
from dasl_core.train.views import View, views_of

MOST_IMAGES = 64
# Bytes of canvases and views that are held at once.
_MEMORY = 1_000_000_000

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Row:
    """One image with its views, as values in [0, 1], rounded to 8 bits.

    Attributes:
        position: in the index.
        step: of the training, counted from 0, at which the image is drawn so.
        place: within the global batch of this step.
        original: (C, H, W) uint8: the canvas that views are cut from.
        views: (C, S, S) uint8, one for each view of the method.
        unreadable: why the image cannot be read; it is black then.
    """

    position: int
    step: int
    place: int
    original: Tensor
    views: list[Tensor]
    unreadable: str | None = None


@dataclass(frozen=True)
class Preview:
    """The first images of a training, in their order."""

    spec: ResolvedJobSpec
    index: DatasetIndex
    views: list[View]
    rows: list[Row]

    def is_local(self, view: int) -> bool:
        """Whether a view, counted from 0, is a local crop."""
        return isinstance(self.spec.method, ResolvedMultiCropConfig) and view >= 2

    def settings(self) -> dict[str, Any]:
        """Return what was drawn and with which settings, JSON-ready."""
        return {
            "format": 1,
            "dataset": self.spec.dataset,
            "seed": self.spec.train.seed,
            "batch_size": self.spec.train.batch_size,
            "image_size": self.spec.backbone.image_size,
            "in_channels": self.spec.backbone.in_channels,
            "window": list(self.spec.backbone.window),
            "views": [
                {
                    "image_size": view.image_size,
                    "local": self.is_local(number),
                    "augment": view.augment.model_dump(mode="json"),
                }
                for number, view in enumerate(self.views)
            ],
            "images": [self._of(row) for row in self.rows],
            "spec": self.spec.model_dump(mode="json", include={"method", "augment", "backbone"}),
        }

    def _of(self, row: Row) -> dict[str, Any]:
        labels = self.index.labels
        width, height = map(int, self.index.sizes[row.position])
        return {
            "key": self.index.paths[row.position],
            "class": None if labels is None else self.index.class_names[int(labels[row.position])],
            "width": width,
            "height": height,
            "step": row.step,
            "place": row.place,
            "unreadable": row.unreadable,
        }


def draw(
    spec: ResolvedJobSpec, index: DatasetIndex, images: int, *, threads: int | None = None
) -> Preview:
    """Draw the views of the first images that a training by this spec takes, in its order.

    These are the images of the first batches of the first epoch, with the views that their steps draw: those of a
    training on a CPU bit for bit, before they are rounded to 8 bits, and those of a GPU up to the rounding of its
    arithmetic. Only these images are decoded, so one that turns out to be damaged in training, which leaves it out,
    shifts the order there.

    Args:
        images: their number; fewer are drawn if an epoch has fewer.
        threads: that decode images; None: one for each core.

    Raises:
        ValueError: the spec cannot run on this data, or the images are too many; the message names the field.
    """
    if not 1 <= images <= MOST_IMAGES:
        raise ValueError(f"images: must be from 1 to {MOST_IMAGES}; given {images}.")
    backbone = spec.backbone
    views = views_of(spec.method, spec.augment, backbone.image_size)
    canvases = Canvases(
        index,
        backbone.image_size,
        backbone.in_channels,
        cache=None,
        threads=threads or usable_cores(),
        form=spec.train.image_cache,
    )
    with closing(canvases):
        loader = _data(spec, canvases).loader
        order, size = loader.order(0), loader.batch_size
        count = min(images, loader.steps * size)
        _check_memory(canvases, views, min(count, size))
        maker = build_view_maker(spec, None, CPU, weight_dtype(spec.train.precision))
        rows: list[Row] = []
        for step, first in enumerate(range(0, count, size)):
            whole = order[first : first + size]
            shown = whole[: count - first]
            pixels, valid_hw = canvases.read(shown)
            # The first images of a global batch are like the share of rank 0.
            batch = Batch(pixels, valid_hw, torch.from_numpy(whole), step)
            made = [_denormalized(view, backbone.normalization) for view in maker.make(batch, step)]
            for place, position in enumerate(shown.tolist()):
                height, width = valid_hw[place].tolist()
                canvas = pixels[place, :, :height, :width]
                rows.append(
                    Row(
                        position,
                        step,
                        place,
                        _in_window(canvas, backbone.window),
                        [view[place] for view in made],
                        canvases.unreadable.get(position),
                    )
                )
    return Preview(spec, index, views, rows)


def _data(spec: ResolvedJobSpec, canvases: Canvases) -> TrainingData:
    """Choose the images to train on as training does."""
    sets = {spec.dataset: canvases}
    if spec.evaluate.dataset is not None:  # then all images of this one are trained on
        sets[spec.evaluate.dataset] = canvases
    return TrainingData.of(
        sets,
        spec.train,
        spec.evaluate,
        needs_classes=field_that_needs_classes(spec.method.supervised, spec.dar),
        control=None,
    )


def _check_memory(canvases: Canvases, views: Sequence[View], images: int) -> None:
    pixels = canvases.side**2 + sum(view.image_size**2 for view in views)
    most = max(1, _MEMORY // (pixels * canvases.channels * 4))  # in float32, as both are computed
    if images > most:
        raise ValueError(
            f"images: {images} with {len(views)} views of these sizes and {canvases.channels} channels take too much "
            f"memory. Choose at most {most}."
        )


def _in_window(canvas: Tensor, window: tuple[float, float]) -> Tensor:
    low, high = window
    return _rounded((canvas.to(torch.float32) - low) / (high - low))


def _denormalized(views: Tensor, normalization: Normalization) -> Tensor:
    mean, std = (
        torch.tensor(values, dtype=views.dtype).view(-1, 1, 1)
        for values in (normalization.mean, normalization.std)
    )
    return _rounded(views * std + mean)


def _rounded(values: Tensor) -> Tensor:
    return (values.nan_to_num(0.0).clamp(0, 1) * 255).round().to(torch.uint8)
