"""The random views of a step."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from dasl_core.data.loader import Batch
from dasl_core.data.views import Draws, ViewParameters, draw, render_views
from dasl_core.distributed import rank
from dasl_core.seeds import derive_seed, random_state, restore_random_state, stream
from dasl_core.spec import ResolvedAugment, ResolvedJobSpec, ViewAugment
from dasl_core.spec.fields import Interpolation
from dasl_core.spec.methods import ResolvedMethodSettings
from dasl_core.spec.methods.config import MultiCropConfig
from dasl_core.tensors import to_device
from dasl_core.train.precision import weight_dtype

Augmentation = Callable[[Tensor, Tensor, torch.Generator], Sequence[Tensor]]
"""A function that creates the views of a rank's images on their device.

Its arguments are images (B, C, S, S) uint8, each in the upper left corner of its square; their heights and
widths (B, 2) int64, on the CPU; and a CPU generator for this step and rank. It returns one normalized
tensor (B, C, H, W) for each view of the method, global ones first.
"""


@dataclass(frozen=True)
class View:
    """One view of each image: `image_size` pixels a side, drawn with `augment`."""

    image_size: int
    augment: ViewAugment


def build_views(
    method: ResolvedMethodSettings, augment: ResolvedAugment, image_size: int
) -> list[View]:
    """Build the views that a method compares: global ones first, then the local crops."""
    views = [View(image_size, augment.for_view(view)) for view in range(method.num_views)]
    if isinstance(method, MultiCropConfig):
        assert method.local_size != "auto", "the settings are resolved"
        for view in range(2, method.num_views):
            local = views[view].augment.model_copy(update={"crop_scale": method.local_scale})
            views[view] = View(method.local_size, local)
    return views


def memory_layout(spec: ResolvedJobSpec) -> torch.memory_format:
    """Return the memory format of the views of a spec."""
    return torch.channels_last if spec.train.channels_last else torch.contiguous_format


class CustomViewMaker:
    """Makes the views of a rank's images with a function of the user."""

    def __init__(
        self, augmentation: Augmentation, spec: ResolvedJobSpec, device: torch.device
    ) -> None:
        self.augmentation, self.num_views = augmentation, spec.method.num_views
        self.seed, self.device = spec.train.seed, device
        self.dtype, self.layout = weight_dtype(spec.train.precision), memory_layout(spec)

    def make(self, batch: Batch, step: int) -> list[Tensor]:
        """Return one tensor (B, C, H, W) per view; a ValueError if the function returned something else."""
        images = to_device(batch.canvases, self.device)
        generator = stream(self.seed, "own views", step, rank())
        with self._seeded(step):
            views = list(self.augmentation(images, batch.valid_hw, generator))
        shapes = [tuple(view.shape) for view in views]
        expected = images.shape[:2]
        if len(views) != self.num_views or any(
            len(shape) != 4 or shape[:2] != expected for shape in shapes
        ):
            raise ValueError(
                f"augmentation must return {self.num_views} views of shape ({expected[0]}, "
                f"{expected[1]}, H, W); it returned {shapes}"
            )
        return [
            to_device(view, self.device).to(self.dtype).contiguous(memory_format=self.layout)
            for view in views
        ]

    @contextmanager
    def _seeded(self, step: int) -> Iterator[None]:
        """Seed torch's global generators for a step on a GPU, and restore them.

        A GPU renders views ahead of their step, which must affect neither the function's nor the network's random
        numbers. A CPU renders them in the step.
        """
        if self.device.type == "cpu":
            yield
            return
        state = random_state(self.device)
        torch.manual_seed(derive_seed(self.seed, "own views", step, rank()))
        try:
            yield
        finally:
            restore_random_state(state, self.device)


Drawn = tuple[Sequence[View], Draws]
"""Equal views, and their draws, one view after the other."""


class ViewMaker:
    """Draws and renders the views of a rank's images, on the device, all views of a size in one call."""

    def __init__(self, spec: ResolvedJobSpec, device: torch.device) -> None:
        self.views = build_views(spec.method, spec.augment, spec.backbone.image_size)
        self.seed, self.device = spec.train.seed, device
        self.normalization = spec.backbone.normalization
        self.dtype, self.layout = weight_dtype(spec.train.precision), memory_layout(spec)

    def make(self, batch: Batch, step: int) -> list[Tensor]:
        """Render one tensor (B, C, H, W) per view.

        Random numbers depend on the position of an image in the global batch.
        """
        canvases = to_device(batch.canvases, self.device)
        share, channels = canvases.shape[:2]
        positions = rank() * share + torch.arange(share)
        drawn = self.draw(batch.valid_hw, step, positions, channels)
        return self.render(canvases, batch.valid_hw, drawn)

    def draw(self, valid_hw: Tensor, step: int, positions: Tensor, channels: int) -> list[Drawn]:
        """Draw the views of images at positions (B,) in a step's global batch; sizes as in `render`."""
        drawn: list[Drawn] = []
        for _, alike in groupby(enumerate(self.views), key=lambda each: each[1]):
            numbers, views = zip(*alike, strict=True)
            keys = [derive_seed(self.seed, "views", step, number) for number in numbers]
            drawn.append((views, draw(valid_hw, views[0].augment, keys, positions, channels)))
        return drawn

    def render(self, canvases: Tensor, valid_hw: Tensor, drawn: Sequence[Drawn]) -> list[Tensor]:
        """Render drawn views of canvases (B, C, S, S) with heights and widths (B, 2), on the device."""
        wanted = []
        for (size, interpolation), same in groupby(drawn, key=_size_and_filter):
            parts = [draws.parameters(valid_hw, interpolation) for _, draws in same]
            wanted.append((ViewParameters.joined(parts), size))
        rendered = render_views(canvases, valid_hw, wanted, self.dtype, self.normalization)
        return [
            view
            for images in rendered
            for view in images.contiguous(memory_format=self.layout).split(len(canvases))
        ]


def _size_and_filter(drawn: Drawn) -> tuple[int, Interpolation]:
    (view, *_), _ = drawn
    return view.image_size, view.augment.interpolation
