"""Decoding of image files of every format, depth, number of bands and orientation to arrays."""

from __future__ import annotations

from typing import IO

import numpy as np

from dasl_core.data.decode.eight_bit import decode_image, eight_bit_pixels
from dasl_core.data.decode.families import find_family
from dasl_core.data.decode.header import MAX_PIXELS, Header, PixelType
from dasl_core.data.decode.header_bounds import bounded
from dasl_core.data.decode.memory import SCALES, decoding_memory
from dasl_core.data.decode.pixels import as_data_set_has
from dasl_core.data.decode.reasons import is_transient, one_sentence
from dasl_core.vocabulary import IMAGE_EXTENSIONS as EXTENSIONS

__all__ = [
    "EXTENSIONS",
    "MAX_PIXELS",
    "SCALES",
    "Header",
    "PixelType",
    "decode",
    "decode_image",
    "decoding_memory",
    "eight_bit_pixels",
    "is_transient",
    "one_sentence",
    "read_header",
]


def read_header(file: IO[bytes], name: str) -> Header:
    """Read the header of an image file, without decoding pixels.

    WebP, AVIF, HEIC and camera RAW are read whole, since their libraries need it, by several threads as
    memory allows; of other formats, a few KiB and never more than 64 MiB are read.

    Args:
        file: a binary file that can seek; it stays open.
        name: its name; the extension decides where the content does not.

    Raises:
        ValueError: the file is unreadable, not an image of a known format, damaged, or larger than
            `MAX_PIXELS`, or the extra for its format is not installed; the message is the reason,
            in a sentence.
    """
    with one_sentence():
        family = find_family(file, name)
        with bounded(file, whole=family.is_read_whole) as opened:
            return family.read_header(opened)


def decode(
    file: IO[bytes],
    name: str,
    channels: int,
    dtype: PixelType = "uint8",
    at_least: tuple[int, int] | None = None,
) -> np.ndarray:
    """Decode the first image of a file, upright, to the bands and type of a data set.

    Bands: if their number is `channels`, they stay as they are. Gray is repeated for three channels, RGB
    becomes luminance (ITU-R 601-2) for one, and before either, transparency is composited on white
    and CMYK becomes RGB.

    Types: uint8 becomes uint16 times 257, uint8 and uint16 become float32 from 0 to 1, int16 becomes
    float32 as it is, and uint16 becomes uint8 divided by 257.

    Args:
        file: a binary file that can seek; it stays open.
        name: its name; the extension decides where the content does not.
        channels: bands of the result.
        dtype: type of the result.
        at_least: height and width. A JPEG may be decoded at 1/2, 1/4 or 1/8 of its size, if that is at
            least this: photos of 12 megapixels three to four times faster. Others keep their size.

    Returns:
        (H, W, channels) of `dtype`, contiguous and writable.

    Raises:
        ValueError: as for `read_header`, or `channels` or `dtype` does not fit the image.
    """
    with one_sentence():
        pixels = find_family(file, name).decode(file, channels, at_least)
        return as_data_set_has(pixels, channels, dtype)
