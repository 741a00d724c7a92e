"""Pictures of a preview, and its contact sheet: a row for each image, a column for each view."""

import math
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from dasl_core.previews.drawing import Drawing, Row
from dasl_core.text import cut

# Pixels.
_CELL = 160  # maximum size of a view of the whole image size
_GAP = 8
_TEXT = 12  # height of the letters
_LINE = 16
# Gray, because many images have white or black borders.
_PAPER, _INK, _FAINT, _ALARM = "#d4d4d8", "black", "#3f3f46", "firebrick"


class ContactSheet:
    """The sheet of a preview, in `picture`. All views have the same scale, so local crops are smaller."""

    def __init__(self, drawing: Drawing) -> None:
        size = drawing.spec.backbone.image_size
        # Small images are enlarged by whole factors, so that pixels stay square.
        scale: float = _CELL // size if size <= _CELL else _CELL / size
        cell = round(scale * size)
        self._sides = [cell, *(max(1, round(scale * view.image_size)) for view in drawing.views)]
        self._lefts = [_GAP]
        for side in self._sides[:-1]:
            # Columns of local crops are wide enough for their titles.
            self._lefts.append(self._lefts[-1] + max(side, 6 * _TEXT) + _GAP)
        self._top, self._row_height = _GAP + 3 * _LINE, _LINE + cell + _GAP
        width = max(self._lefts[-1] + max(self._sides[-1], 6 * _TEXT) + _GAP, 3 * _CELL)
        height = self._top + drawing.images * self._row_height
        self.picture = Image.new("RGB", (width, height), _PAPER)
        self._pen, self._font = ImageDraw.Draw(self.picture), _font()
        self._index, self._added = drawing.index, 0
        spec = drawing.spec
        title = (
            f"{spec.dataset}: {spec.method.name}, {size} px, seed {spec.train.seed}, "
            f"the first {drawing.images} images"
        )
        self._write(_GAP, _GAP // 2, title, _INK)
        names = [("original", "fitted")]
        for number, view in enumerate(drawing.views):
            local = "local " if drawing.is_local(number) else ""
            names.append((f"view {number}", f"{local}{view.image_size} px"))
        for left, (name, note) in zip(self._lefts, names, strict=True):
            self._pen.text((left, _GAP + _LINE), name, _INK, self._font)
            self._pen.text((left, _GAP + 2 * _LINE - 2), note, _FAINT, self._font)

    def add(self, row: Row) -> None:
        """Draw the next row."""
        y = self._top + self._added * self._row_height
        self._write(_GAP, y, f"{self._added}  {self._index.paths[row.position]}", _FAINT)
        self._added += 1
        if row.unreadable is not None:
            self._write(_GAP, y + _LINE, f"cannot be read: {row.unreadable}", _ALARM)
            return
        images = (row.original, *row.views)
        for left, side, image in zip(self._lefts, self._sides, images, strict=True):
            self.picture.paste(_fitted(sketch(image), side), (left, y + _LINE))

    def _write(self, x: int, y: int, text: str, ink: str) -> None:
        """Write a line, cut at the edge of the sheet."""
        line = text.encode("unicode_escape").decode() if not text.isprintable() else text
        room = self.picture.width - x
        while self._pen.textlength(line, self._font) > room and len(line) > 4:
            line = cut(line, len(line) - 1) if line.endswith("...") else line[:-4] + "..."
        self._pen.text((x, y), line, ink, self._font)


def _font() -> ImageFont.FreeTypeFont:
    """Return the font of the plots, which supports more languages than Pillow's."""
    return ImageFont.truetype(
        Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"), _TEXT
    )


def _fitted(image: Image.Image, side: int) -> Image.Image:
    """Scale an image so that its longer side is `side`."""
    scale = side / max(image.size)
    width, height = (max(1, round(scale * edge)) for edge in image.size)
    how = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.BOX
    return image.resize((width, height), how)


def picture(image: Tensor) -> Image.Image:
    """Convert all channels of (C, H, W) uint8 to an image: gray and color unchanged, otherwise a grid of grays."""
    channels, height, width = image.shape
    if channels in (1, 3):
        return sketch(image)
    columns = math.ceil(math.sqrt(channels))
    grid = Image.new("L", (columns * width, math.ceil(channels / columns) * height))
    for number, channel in enumerate(image):
        row, column = divmod(number, columns)
        grid.paste(sketch(channel[None]), (column * width, row * height))
    return grid


def sketch(image: Tensor) -> Image.Image:
    """Convert (C, H, W) uint8 to an image of that size: the first three of more channels, or the first of two."""
    pixels = image.numpy()
    if len(pixels) < 3:
        return Image.fromarray(np.ascontiguousarray(pixels[0]))
    return Image.fromarray(np.ascontiguousarray(pixels[:3].transpose(1, 2, 0)))
