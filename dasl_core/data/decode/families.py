"""Families of image formats, and detection of a file's family."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import IO, NamedTuple

from dasl_core.data.decode import dicom, npy, pillow, raw, tiff
from dasl_core.data.decode.header import Header
from dasl_core.data.decode.pixels import Pixels
from dasl_core.data.decode.reasons import EMPTY
from dasl_core.vocabulary import DICOM_EXTENSIONS, RAW_EXTENSIONS

# fmt: off
_TIFF_MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_PILLOW_MAGIC = (b"\xff\xd8\xff", b"\x89PNG", b"BM", b"GIF8", b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51")
_HEIF_BRANDS = (
    b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1",
)
# fmt: on
_HEAD = 132


class Family(NamedTuple):
    """Formats that one module decodes.

    Attributes:
        read_header: as `dasl_core.data.decode.read_header`.
        decode: as `dasl_core.data.decode.decode`, with channels and `at_least`, to the bands and type of the file.
        is_read_whole: whether the library must read the whole file to read its header.
    """

    read_header: Callable[[IO[bytes]], Header]
    decode: Callable[[IO[bytes], int, tuple[int, int] | None], Pixels]
    is_read_whole: bool = False


_PILLOW = Family(pillow.read_header, pillow.decode)
_HEIF = Family(
    partial(pillow.read_header, formats=("HEIF",)),
    partial(pillow.decode, formats=("HEIF",)),
    is_read_whole=True,
)
_TIFF = Family(tiff.read_header, lambda file, channels, at_least: tiff.decode(file, channels))
_DICOM = Family(dicom.read_header, lambda file, channels, at_least: dicom.decode(file))
_NPY = Family(npy.read_header, lambda file, channels, at_least: npy.decode(file))
_RAW = Family(raw.read_header, raw.decode, is_read_whole=True)


def find_family(file: IO[bytes], name: str) -> Family:
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
    if head.startswith(_PILLOW_MAGIC):
        return _PILLOW
    if head[4:8] == b"ftyp" and head[8:12] in _HEIF_BRANDS and b"avif" not in head[:32]:
        return _HEIF
    if extension in RAW_EXTENSIONS:
        return _RAW
    if head.startswith(_TIFF_MAGIC):
        return _TIFF
    if extension in DICOM_EXTENSIONS:
        return _DICOM
    is_webp_or_avif = head[4:8] == b"ftyp" or head[8:12] == b"WEBP"
    return _PILLOW._replace(is_read_whole=is_webp_or_avif)
