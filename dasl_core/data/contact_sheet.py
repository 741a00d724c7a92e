"""Contact sheet of a data set: thumbnails of sample images, in one JPEG."""

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from dasl_core.data.pixel_facts import PixelFacts
from dasl_core.spec.resolve.pixels import automatic_window

# 64 thumbnails of 128 pixels: about 300 KB, 2 MB at most.
MOST = 64
_COLUMNS = 8
_SIDE = 128
_GAP = 4
_BACKGROUND = 32
_QUALITY = 85


@dataclass(frozen=True)
class ContactSheet:
    """Thumbnails, row by row.

    Attributes:
        paths: paths of the images.
        thumbnails: (height, width, 1 or 3) float32 of raw values, each side at most `_SIDE`.
    """

    paths: Sequence[str]
    thumbnails: Sequence[np.ndarray]
    pixels: PixelFacts

    def report(self) -> dict[str, object]:
        """Return the layout of the thumbnails, JSON-ready."""
        return {"columns": min(_COLUMNS, len(self.paths)), "paths": list(self.paths)}

    def jpeg(self) -> bytes:
        """Encode the sheet; the same images give the same bytes."""
        low, high = automatic_window(self.pixels.dtype, self.pixels.quantiles)
        columns = min(_COLUMNS, len(self.thumbnails))
        rows = -(-len(self.thumbnails) // columns)
        step = _SIDE + _GAP
        sheet = np.full((rows * step + _GAP, columns * step + _GAP, 3), _BACKGROUND, np.uint8)
        for number, thumbnail in enumerate(self.thumbnails):
            scaled = (thumbnail.astype(np.float64) - low) * (255.0 / (high - low))
            pixels = np.clip(np.rint(scaled), 0, 255).astype(np.uint8)
            height, width = pixels.shape[:2]
            row, column = divmod(number, columns)
            top = _GAP + row * step + (_SIDE - height) // 2
            left = _GAP + column * step + (_SIDE - width) // 2
            sheet[top : top + height, left : left + width] = pixels
        content = io.BytesIO()
        Image.fromarray(sheet).save(content, "JPEG", quality=_QUALITY)
        return content.getvalue()


def choose(positions: Sequence[int], labels: np.ndarray | None) -> list[int]:
    """Choose up to `MOST` evenly spaced images of a sample, equally many from each class if it has labels."""
    if labels is None:
        return spaced(positions, MOST)
    numbers = np.asarray(positions)
    classes = [numbers[labels == label].tolist() for label in np.unique(labels)]
    sample = spaced(range(len(classes)), MOST)
    return [image for label in sample for image in spaced(classes[label], MOST // len(sample))]


def thumbnail(image: np.ndarray) -> np.ndarray:
    """Reduce an image (H, W, bands); with bands other than 1 or 3, use the first three or the first."""
    height, width, bands = image.shape
    # A large image is subsampled first, so that reducing it takes no more memory than decoding.
    stride = max(1, max(height, width) // (4 * _SIDE))
    thinned = image[::stride, ::stride, : 3 if bands >= 3 else 1].astype(np.float32)
    scale = _SIDE / max(thinned.shape[:2])
    if scale >= 1:
        return thinned
    size = tuple(max(1, round(scale * side)) for side in (thinned.shape[1], thinned.shape[0]))
    reduced = [
        np.asarray(Image.fromarray(band).resize((size[0], size[1]), Image.Resampling.BOX))
        for band in np.moveaxis(thinned, 2, 0)
    ]
    return np.stack(reduced, axis=2)


def spaced(items: Sequence[int], most: int) -> list[int]:
    """Choose at most `most` of the items, evenly spaced."""
    count = min(most, len(items))
    return [items[number * len(items) // count] for number in range(count)]
