"""Images of a map-style data set, such as a `torch.utils.data.Dataset`, in place of a folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from PIL import Image

from dasl_core.data.contact_sheet import spaced
from dasl_core.data.decode import eight_bit_pixels
from dasl_core.data.duplicates import describe, find_duplicates, groups_of, most_compared, reduce
from dasl_core.data.index import DatasetIndex
from dasl_core.data.sources import SourceRecord


class MapDataset(Protocol):
    """Images by position: `torch.utils.data.Dataset` with a length, a list, a Hugging Face data set."""

    def __len__(self) -> int: ...

    def __getitem__(self, position: int, /) -> Any:
        """Return an image, or a tuple that begins with an image and its class, a whole number."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MappedIndex(DatasetIndex):
    """The images of a map-style data set, for `pretrain`.

    Images are read in every epoch, in several threads, without a cache on disk.
    """

    on_disk: ClassVar[bool] = False
    dataset: MapDataset

    @classmethod
    def from_dataset(
        cls, dataset: MapDataset, class_names: Sequence[str] | None = None
    ) -> MappedIndex:
        """Index a data set by reading each image once, for its size, its class and its near-duplicates.

        Args:
            dataset: its items are images, or tuples (image, class, ...) as torchvision's are. An image
                is a PIL image, a uint8 tensor (C, H, W) or a uint8 array (H, W, C), with 1 or 3 channels.
            class_names: name of each class; None: their numbers.

        Raises:
            TypeError: an item is none of these.
            ValueError: the data set is empty, or only some of its items have a class.
        """
        sizes, classes = [], []
        compared = {*spaced(range(len(dataset)), most_compared(3, "uint8"))}
        thumbnails = {}
        for position in range(len(dataset)):
            item = dataset[position]
            pixels = _pixels(item, position, 3)
            sizes.append((pixels.shape[1], pixels.shape[0]))
            if position in compared:
                thumbnails[position] = reduce(pixels)
            if isinstance(item, tuple) and len(item) > 1:
                classes.append(int(item[1]))
        if not sizes:
            raise ValueError("dataset must contain at least one image; it is empty")
        if classes and len(classes) < len(sizes):
            raise ValueError(f"dataset has a class for {len(classes)} of {len(sizes)} images only")
        numbers = range(max(classes) + 1) if classes else ()
        names = [str(number) for number in numbers] if class_names is None else list(class_names)
        if classes and not 0 <= min(classes) <= max(classes) < len(names):
            raise ValueError(
                f"dataset has classes from {min(classes)} to {max(classes)}, which must be positions "
                f"in the {len(names)} class_names"
            )
        paths = [f"item {position}" for position in range(len(sizes))]
        duplicate_of, checked = find_duplicates(len(sizes), (), thumbnails, 255)
        return cls(
            source=SourceRecord("folder", "", ""),
            paths=paths,
            labels=np.array(classes, np.int32) if classes else None,
            class_names=names if classes else [],
            sizes=np.array(sizes, dtype=np.int32),
            locations=np.zeros((len(sizes), 4), np.int64),
            skipped=[],
            checksums=np.zeros(len(sizes), np.int32),
            duplicates={"similar": describe(groups_of(duplicate_of), paths, checked)},
            duplicate_of=duplicate_of,
            dataset=dataset,
        )

    def decode(
        self,
        index: int,
        channels: int,
        at_least: tuple[int, int] | None = None,
        on_digest: Callable[[int, bytes], None] | None = None,
    ) -> np.ndarray:
        return _pixels(self.dataset[index], index, channels)


def _pixels(item: object, position: int, channels: int) -> np.ndarray:
    """Convert an item to uint8 pixels (H, W, channels)."""
    image: Any = item[0] if isinstance(item, tuple) and item else item
    if isinstance(image, Image.Image):
        return eight_bit_pixels(image, channels)
    is_array = isinstance(image, torch.Tensor | np.ndarray)
    if is_array and image.ndim == 3 and image.dtype in (torch.uint8, np.uint8):
        pixels = image.permute(1, 2, 0).cpu().numpy() if torch.is_tensor(image) else image
        if pixels.shape[2] == channels:
            return np.asarray(pixels)
        if pixels.shape[2] in (1, 3):
            gray = pixels.shape[2] == 1
            return eight_bit_pixels(Image.fromarray(pixels[:, :, 0] if gray else pixels), channels)
    kind = f"{image.dtype} of shape {tuple(image.shape)}" if is_array else type(image).__name__
    raise TypeError(
        f"item {position} of the data set must be a PIL image, a uint8 tensor (C, H, W) or a uint8 array "
        f"(H, W, C), of 1 or 3 channels; given {kind}"
    )
