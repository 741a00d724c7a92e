"""Families of image formats, and detection of a file's family."""

from __future__ import annotations

from enum import Enum, auto
from typing import IO

from dasl_core.data.decode import dicom, npy
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


class Family(Enum):
    """Formats that one module decodes."""

    PILLOW = auto()
    HEIF = auto()
    TIFF = auto()
    DICOM = auto()
    NPY = auto()
    RAW = auto()


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
        return Family.DICOM
    if head.startswith(npy.MAGIC):
        return Family.NPY
    if head.startswith(_PILLOW_MAGIC):
        return Family.PILLOW
    if head[4:8] == b"ftyp" and head[8:12] in _HEIF_BRANDS and b"avif" not in head[:32]:
        return Family.HEIF
    if extension in RAW_EXTENSIONS:
        return Family.RAW
    if head.startswith(_TIFF_MAGIC):
        return Family.TIFF
    return Family.DICOM if extension in DICOM_EXTENSIONS else Family.PILLOW


def is_read_whole(file: IO[bytes], family: Family) -> bool:
    """Whether a format's library must read the whole file to read its header."""
    if family != Family.PILLOW:
        return family in (Family.HEIF, Family.RAW)
    file.seek(4)
    head = file.read(8)
    return head.startswith(b"ftyp") or head.endswith(b"WEBP")
