"""Images in plots: their pixels, and sheets of thumbnails."""

import io
import math
from collections.abc import Iterator, Sequence

import numpy as np
from PIL import Image

from dasl_core.data.image_set import ImageSet

THUMBNAIL = 64
_READ_AT_ONCE = 64
_QUALITY = 80


class ShownImages:
    """Held-out and training images under one numbering, held-out images first."""

    def __init__(self, held_out: ImageSet, train: ImageSet) -> None:
        self.held_out, self.train = held_out, train

    def __len__(self) -> int:
        return len(self.held_out) + len(self.train)

    def is_held_out(self, position: int) -> bool:
        """Whether an image is held out."""
        return position < len(self.held_out)

    def key(self, position: int) -> str:
        """The path of an image in its data set."""
        images, at = self._place(position)
        return str(images.index.paths[int(images.indices[at])])

    def label(self, position: int) -> str | None:
        """The class name of an image; None without labels."""
        images, at = self._place(position)
        labels = images.index.labels
        if labels is None:
            return None
        return str(images.index.class_names[int(labels[images.indices[at]])])

    def pictures(self, positions: Sequence[int], side: int) -> list[Image.Image]:
        """Return color images that fit into a square of `side` pixels."""
        return [_fitted(pixels, side) for pixels in self._pixels(positions)]

    def sheet(self, positions: Sequence[int], columns: int) -> bytes:
        """Return thumbnails of 64 pixels, row by row, as one WebP. The same images give the same bytes."""
        rows = max(1, -(-len(positions) // columns))
        sheet = Image.new("RGB", (columns * THUMBNAIL, rows * THUMBNAIL), "white")
        for number, pixels in enumerate(self._pixels(positions)):
            picture = _fitted(pixels, THUMBNAIL)
            row, column = divmod(number, columns)
            left = column * THUMBNAIL + (THUMBNAIL - picture.width) // 2
            sheet.paste(picture, (left, row * THUMBNAIL + (THUMBNAIL - picture.height) // 2))
        content = io.BytesIO()
        sheet.save(content, "WEBP", quality=_QUALITY, method=2)
        return content.getvalue()

    def _place(self, position: int) -> tuple[ImageSet, int]:
        count = len(self.held_out)
        return (self.held_out, position) if position < count else (self.train, position - count)

    def _pixels(self, positions: Sequence[int]) -> Iterator[np.ndarray]:
        """Yield the pixels (H, W, C) of images as 8-bit color or gray."""
        for start in range(0, len(positions), _READ_AT_ONCE):
            places = [self._place(image) for image in positions[start : start + _READ_AT_ONCE]]
            read: dict[int, np.ndarray] = {}
            for images in (self.held_out, self.train):
                rows = [row for row, (owner, _) in enumerate(places) if owner is images]
                if not rows:
                    continue
                canvases, valid_hw = images.canvases.read(
                    [int(images.indices[places[row][1]]) for row in rows]
                )
                for row, canvas, (height, width) in zip(
                    rows, canvases, valid_hw.tolist(), strict=True
                ):
                    read[row] = eight_bit(canvas[:, :height, :width].permute(1, 2, 0).numpy())
            yield from (read[row] for row in range(len(places)))


def sheet_columns(count: int) -> int:
    """Return the number of columns of a nearly square sheet."""
    return max(1, math.ceil(math.sqrt(count)))


def eight_bit(pixels: np.ndarray) -> np.ndarray:
    """Convert pixels (H, W, C) to 8-bit color, or the first band; deep values are scaled from their range."""
    if pixels.shape[2] != 3:
        pixels = pixels[:, :, :1]
    if pixels.dtype != np.uint8:
        values = pixels.astype(np.float32)
        low, high = float(values.min()), float(values.max())
        pixels = np.rint((values - low) * (255 / max(high - low, 1e-12))).astype(np.uint8)
    colors: np.ndarray = np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels
    return colors


def _fitted(pixels: np.ndarray, side: int) -> Image.Image:
    """Scale an image to fit into a square; enlarge only by whole factors, so that pixels stay sharp."""
    picture = Image.fromarray(pixels)
    scale = side / max(picture.size)
    if scale >= 2:
        scale = math.floor(scale)
    size = tuple(max(1, round(scale * length)) for length in picture.size)
    how = Image.Resampling.NEAREST if scale >= 3 else Image.Resampling.LANCZOS
    return picture.resize((size[0], size[1]), how)
