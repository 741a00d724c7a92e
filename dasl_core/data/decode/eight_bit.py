"""Decoding of any depth to 8 bits."""

import os
from typing import IO

import numpy as np
from PIL import Image, UnidentifiedImageError

from dasl_core.data.decode.header import check_pixels
from dasl_core.data.decode.pillow import EXIF_ORIENTATION, FORMATS, as_array, to_mode, upright
from dasl_core.data.decode.reasons import EMPTY, UNKNOWN, one_sentence


def decode_image(source: str | os.PathLike[str] | IO[bytes], channels: int = 3) -> np.ndarray:
    """Decode an image file completely.

    EXIF orientation is applied, 16-bit values are scaled to 8 bits by the full range (0 to 65535),
    transparency is composited on white, CMYK and palettes become RGB, and the first of several frames is taken.

    Args:
        source: a path, or a binary file.
        channels: 3 for RGB (gray is repeated), 1 for luminance (ITU-R 601-2).

    Returns:
        A uint8 array (height, width, channels).

    Raises:
        ValueError: the file is missing, unreadable, not an image of a known format, damaged,
            truncated, or larger than `MAX_PIXELS`; the message is the reason, in a sentence. Or
            `channels` is neither 1 nor 3.
    """
    if channels not in (1, 3):
        raise ValueError(f"channels must be 1 or 3; given {channels!r}")
    with one_sentence():
        try:
            with Image.open(source, formats=FORMATS) as image:
                check_pixels(*image.size)
                image.load()
                return eight_bit_pixels(image, channels)
        except UnidentifiedImageError as error:
            is_empty = isinstance(source, str | os.PathLike) and not os.path.getsize(source)
            raise ValueError(EMPTY if is_empty else UNKNOWN) from error


def eight_bit_pixels(image: Image.Image, channels: int) -> np.ndarray:
    """Convert a loaded image as `decode_image` does, to a uint8 array (height, width, channels)."""
    try:
        orientation = image.getexif().get(EXIF_ORIENTATION, 1)
    except Exception:  # noqa: BLE001 - damaged EXIF raises almost anything; the pixels are fine
        orientation = 1
    image = upright(image, orientation)
    if image.mode.startswith(("I", "F")):
        image = _eight_bit(image)
    return as_array(to_mode(image, "L" if channels == 1 else "RGB"))


def _eight_bit(image: Image.Image) -> Image.Image:
    """Scale gray of more than 8 bits; Pillow's own conversion would clip it at 255."""
    values = np.asarray(image)
    low, high = values.min(), values.max()
    if image.mode == "F":
        if not (low >= 0 and high <= 1):
            raise ValueError(
                "the image has floating-point pixels, which must lie between 0 and 1, not "
                f"{low:g} to {high:g}: save it with 8 or 16 bits"
            )
        scale = 255.0
    else:
        if low < 0 or high > 65535:
            raise ValueError(
                "the image has integer pixels, which must have at most 16 bits, not "
                f"{low} to {high}: save it with 8 or 16 bits"
            )
        scale = 1 / 257
    rounded = values.astype(np.float32) * np.float32(scale) + np.float32(0.5)
    eight = rounded.astype(np.uint8)
    # A PNG of 16 bits may name one value that is transparent.
    if isinstance(clear := image.info.get("transparency"), int):
        eight[values == clear] = 255
    return Image.fromarray(eight)
