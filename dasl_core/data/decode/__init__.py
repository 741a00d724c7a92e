"""Decoding of image files of every format, depth, number of bands and orientation to arrays."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from dasl_core.data.decode import dicom, npy, pillow, raw, tiff
from dasl_core.data.decode.eight_bit import eight_bit_pixels, eight_bit_values
from dasl_core.data.decode.foreign import describe_foreign
from dasl_core.data.decode.header import MAX_PIXELS, SCALES, Header, PixelType, decoding_memory
from dasl_core.data.decode.header_bounds import bounded
from dasl_core.data.decode.pixels import Pixels, as_data_set_has
from dasl_core.data.decode.reasons import EMPTY, is_transient, one_sentence
from dasl_core.vocabulary import DICOM_EXTENSIONS, RAW_EXTENSIONS

__all__ = [
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


# fmt: off
_TIFF_MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_HEIF_BRANDS = (
    b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1",
)
# fmt: on
_HEAD = 132


class _Family(NamedTuple):
    """Formats that one module decodes.

    Attributes:
        read_header: as `dasl_core.data.decode.read_header`.
        decode: as `dasl_core.data.decode.decode`, with channels and `at_least`, to the bands and type of the file.
        is_read_whole: whether the library must read the whole file to read its header.
    """

    read_header: Callable[[IO[bytes]], Header]
    decode: Callable[[IO[bytes], int, tuple[int, int] | None], Pixels]
    is_read_whole: bool = False


_PILLOW = _Family(pillow.read_header, pillow.decode)
_HEIF = _Family(
    partial(pillow.read_header, formats=("HEIF",)),
    partial(pillow.decode, formats=("HEIF",)),
    is_read_whole=True,
)
_TIFF = _Family(tiff.read_header, lambda file, channels, at_least: tiff.decode(file, channels))
_DICOM = _Family(dicom.read_header, lambda file, channels, at_least: dicom.decode(file))
_NPY = _Family(npy.read_header, lambda file, channels, at_least: npy.decode(file))
_RAW = _Family(raw.read_header, raw.decode, is_read_whole=True)


def _find_family(file: IO[bytes], name: str) -> _Family:
    """Find the family of a file by its content or extension.

    The extension decides where formats share a beginning (camera RAW and TIFF) or have none (old DICOM).

    Raises:
        ValueError: the file is empty.
    """
    file.seek(0)
    head = file.read(_HEAD)
    if not head:
        raise ValueError(EMPTY)
    extension = name.rpartition(".")[2].lower()
    if head[dicom.PREFIX_AT :] == dicom.PREFIX:
        return _DICOM
    if head.startswith(npy.MAGIC):
        return _NPY
    if head.startswith((*pillow.MAGIC,)):
        return _PILLOW
    if head[4:8] == b"ftyp" and head[8:12] in _HEIF_BRANDS and b"avif" not in head[:32]:
        return _HEIF
    if extension in RAW_EXTENSIONS:
        return _RAW
    if head.startswith(_TIFF_MAGIC):
        return _TIFF
    if extension in DICOM_EXTENSIONS:
        return _DICOM
    if (what := describe_foreign(head)) is not None:
        raise ValueError(f"the file is {what}")
    is_webp_or_avif = head[4:8] == b"ftyp" or head[8:12] == b"WEBP"
    return _PILLOW._replace(is_read_whole=is_webp_or_avif)


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
        family = _find_family(file, name)
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
        pixels = _find_family(file, name).decode(file, channels, at_least)
        return as_data_set_has(pixels, channels, dtype)


def decode_image(source: str | os.PathLike[str] | IO[bytes], channels: int = 3) -> np.ndarray:
    """Decode the file at a path, or one that can seek, to uint8 (H, W, channels), as training does files of 8 bits.

    Deeper values are scaled by their full range: 16 bits from 0 to 65535, and floats from 0 to 1.

    Raises:
        ValueError: as of `decode`, or the values are beyond their range, or `channels` is neither 1 nor 3.
    """
    if channels not in (1, 3):
        raise ValueError(f"channels must be 1 or 3; given {channels!r}")
    with ExitStack() as stack, one_sentence():
        if isinstance(source, str | os.PathLike):
            name, file = os.fspath(source), stack.enter_context(Path(source).open("rb"))
        else:
            name, file = "", source  # type: ignore[assignment]
        header = read_header(file, name)
        return eight_bit_values(decode(file, name, channels, header.dtype))
