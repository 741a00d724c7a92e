"""Decoding to 8 bits, whatever a file has: for callers that know no other depth."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import IO, NamedTuple

import numpy as np
from PIL import Image, ImageFile, UnidentifiedImageError

from dasl_core.data.decode.header import check_pixels
from dasl_core.data.decode.pillow import FORMATS, as_array, to_mode, upright
from dasl_core.data.decode.reasons import EMPTY, reason_of

# Bytes in which the codestream of a JPEG 2000 file begins: color profiles may be before it.
_JPEG2000_HEADERS = 2**22
_EXIF_ORIENTATION = 0x0112


class ValueRange(NamedTuple):
    """The values of an image of more than 8 bits, of 0 to 65535.

    Attributes:
        upper: share of the values that are at least 32768.
    """

    low: int
    high: int
    upper: float


def decode_image(source: str | os.PathLike[str] | IO[bytes], channels: int = 3) -> np.ndarray:
    """Decode an image file completely.

    EXIF orientation is applied, 16-bit values are scaled to 8 bits by the full range (0 to 65535,
    whatever part of it the image uses), transparency is composited on white, CMYK and palettes are converted to RGB, and of several frames the first is taken.

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
    return decode_with_range(source, channels)[0]


def decode_with_range(
    source: str | os.PathLike[str] | IO[bytes],
    channels: int = 3,
    before_load: Callable[[int], object] = lambda pixels: None,
) -> tuple[np.ndarray, ValueRange | None]:
    """Decode an image as `decode_image`, and measure the values of one of more than 8 bits.

    Args:
        source: as for `decode_image`.
        channels: as for `decode_image`.
        before_load: called with the number of pixels, before they are decoded; it may wait for memory.

    Returns:
        The array, and the values in the file; None if the image has 8 bits or floating-point values.

    Raises:
        ValueError: as for `decode_image`.
    """
    if channels not in (1, 3):
        raise ValueError(f"channels must be 1 or 3; given {channels!r}")
    try:
        with Image.open(source, formats=FORMATS) as image:
            width, height = image.size
            check_pixels(width, height)
            deep = _has_more_than_8_bits(image)
            before_load(width * height)
            image.load()
            value_range = _value_range(image) if deep else None
            array = eight_bit_pixels(image, channels)
    except Exception as error:  # on damaged files Pillow raises almost anything
        if isinstance(error, UnidentifiedImageError) and _is_empty(source):
            raise ValueError(EMPTY) from error
        raise ValueError(reason_of(error)) from error
    return array, value_range


def eight_bit_pixels(image: Image.Image, channels: int) -> np.ndarray:
    """Convert a loaded image as `decode_image` does, to a uint8 array (height, width, channels)."""
    try:
        orientation = image.getexif().get(_EXIF_ORIENTATION)
    except Exception:  # noqa: BLE001 - damaged EXIF raises almost anything; the pixels are fine
        orientation = None
    image = upright(image, orientation if isinstance(orientation, int) else 1)
    if image.mode.startswith(("I", "F")):
        image = _eight_bit(image)
    return as_array(to_mode(image, "L" if channels == 1 else "RGB"))


def _is_empty(source: str | os.PathLike[str] | IO[bytes]) -> bool:
    return isinstance(source, str | os.PathLike) and os.path.getsize(source) == 0


def _has_more_than_8_bits(image: ImageFile.ImageFile) -> bool:
    """Whether the pixels are integers of more than 8 bits; `load` forgets this of color images."""
    if image.format == "JPEG2000":
        return _jpeg2000_bits(image) > 8
    return image.mode.startswith("I") or any(";16" in str(tile[3]) for tile in image.tile)


def _jpeg2000_bits(image: ImageFile.ImageFile) -> int:
    """Read the bits of the first component, which Pillow keeps only of gray images; 0 if they are not found."""
    if image.mode.startswith("I"):
        return 16
    file = image.fp
    assert file is not None, "it is open until `load`"
    before = file.tell()
    file.seek(0)
    start = file.read(_JPEG2000_HEADERS)
    file.seek(before)
    size = start.find(b"\xff\x4f\xff\x51")  # the beginning of the codestream, and its size marker
    bits = start[size + 42 : size + 43] if size >= 0 else b""
    return (bits[0] & 0x7F) + 1 if bits else 0


def _value_range(image: Image.Image) -> ValueRange:
    values = np.asarray(image)
    if image.mode.startswith("I"):
        upper = float((values >= 1 << 15).mean())
        return ValueRange(int(values.min()), int(values.max()), upper)
    # Of colors Pillow has kept the upper 8 bits; the fourth channel is opacity.
    colors = values[..., :3]
    upper = float((colors >= 1 << 7).mean())
    return ValueRange(256 * int(colors.min()), 256 * int(colors.max()) + 255, upper)


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
