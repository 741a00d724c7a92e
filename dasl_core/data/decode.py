"""Decoding of an image file to a uint8 array, for every mode, bit depth and orientation."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import IO, NamedTuple

import numpy as np
from PIL import Image, ImageFile, UnidentifiedImageError

# Raster formats that Pillow decodes itself, unlike EPS, for which it runs another program. Only these
# are tried, for any extension of the file.
FORMATS = ("JPEG", "PNG", "BMP", "DIB", "WEBP", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF")

# A file of a few KiB can claim an image of any size; this is 268 MB of RGB, far above any photo.
MAX_PIXELS = 89_478_485

# Most bytes that decoding takes for a pixel, as measured: of Pillow's decoder and image, of converted, turned or
# blended copies, and of the array. JPEG takes half of it; WebP, JPEG 2000 and PNG with transparency take all.
BYTES_PER_PIXEL = 20

# Prefixes of reasons that do not depend on a file's content: another attempt may succeed.
_MISSING, _FORBIDDEN = "the file does not exist", "the file may not be read"
_UNREADABLE, _NO_MEMORY = "the file cannot be read", "there is not enough memory"

# Bytes in which the codestream of a JPEG 2000 file begins: color profiles may be before it.
_JPEG2000_HEADERS = 2**22

_EXIF_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


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
            if width * height > MAX_PIXELS:
                raise ValueError(_too_large(f"{width} x {height} pixels"))
            deep = _has_more_than_8_bits(image)
            before_load(width * height)
            image.load()
            value_range = _value_range(image) if deep else None
            array = eight_bit_pixels(image, channels)
    except Exception as error:  # on damaged files Pillow raises almost anything
        raise ValueError(_reason(error, source)) from error
    return array, value_range


def eight_bit_pixels(image: Image.Image, channels: int) -> np.ndarray:
    """Convert a loaded image as `decode_image` does, to a uint8 array (height, width, channels)."""
    pixels = _to_mode(_upright(image), "L" if channels == 1 else "RGB")
    return np.array(pixels, dtype=np.uint8).reshape(pixels.height, pixels.width, channels)


def is_transient(reason: str) -> bool:
    """Whether `decode_image` failed with this reason for something other than the file's content."""
    return reason.startswith((_MISSING, _FORBIDDEN, _UNREADABLE, _NO_MEMORY))


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


def _upright(image: Image.Image) -> Image.Image:
    try:
        orientation = image.getexif().get(_EXIF_ORIENTATION)
    except Exception:  # noqa: BLE001 - damaged EXIF raises almost anything; the pixels are fine
        orientation = None
    turn = _UPRIGHT.get(orientation) if isinstance(orientation, int) else None
    return image if turn is None else image.transpose(turn)


def _to_mode(image: Image.Image, mode: str) -> Image.Image:
    if image.mode.startswith(("I", "F")):
        image = _eight_bit(image)
    elif image.has_transparency_data:
        # Straight alpha first: "La" and "RGBa" hold colors already multiplied by it.
        straight = {"La": "LA"}.get(image.mode, "RGBA")
        color = image.convert(straight).convert("RGBA")
        white = Image.new("RGBA", color.size, "white")
        image = Image.alpha_composite(white, color)
    if image.mode == "LAB":
        image = image.convert("RGB")
    return image if image.mode == mode else image.convert(mode)


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


def _reason(error: Exception, source: object) -> str:
    if isinstance(error, FileNotFoundError):
        return _MISSING
    if isinstance(error, PermissionError):
        return f"{_FORBIDDEN} (permission denied)"
    if isinstance(error, IsADirectoryError):
        return "it is a folder"
    if isinstance(error, UnidentifiedImageError):
        if isinstance(source, str | os.PathLike) and os.path.getsize(source) == 0:
            return "the file is empty"
        return "the content is not an image of a known format"
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        # Pillow raised before the size was read; its message contains it.
        count = re.search(r"\d+ pixels", str(error))
        return _too_large(count[0] if count else "far too many pixels")
    if isinstance(error, MemoryError):
        return f"{_NO_MEMORY} to decode it"
    if isinstance(error, OSError) and error.strerror:
        return f"{_UNREADABLE}: {error.strerror}"
    detail = " ".join(str(error).split()) or type(error).__name__
    return detail if detail.startswith("the image ") else f"the image is damaged: {detail}"


def _too_large(size: str) -> str:
    return f"the image is too large: {size}, more than the limit of {MAX_PIXELS} pixels"
