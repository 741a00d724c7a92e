"""Checksums that detect, before decoding, images replaced after ingest.

File times would not do: they differ in copies and restored backups with the same content.
"""

from __future__ import annotations

import io
import zlib
from typing import IO

from dasl_core.data.decode import one_sentence

_PART = 4 << 10
# First bytes of compressed formats (JPEG, PNG, GIF, WebP), where different images differ in length or beginning.
_COMPRESSED = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF")


def compute_checksum(file: IO[bytes], *, inflates: bool) -> int:
    """Compute a positive checksum (31 bits) of an image's length and first 4 KiB.

    For formats that may store raw pixels, where images of one size have the same length, it includes 4 KiB in the
    middle and at the end.

    Args:
        file: seekable; stays open, at its start.
        inflates: whether the file is inflated as it is read; then only its beginning is used.

    Raises:
        ValueError: it cannot be read; the message is the reason.
    """
    with one_sentence():
        file.seek(0)
        head = file.read(_PART)
        checksum = zlib.crc32(head)
        if not inflates:
            length = file.seek(0, io.SEEK_END)
            checksum = zlib.crc32(length.to_bytes(8, "little"), checksum)
            if length > len(head) and not head.startswith(_COMPRESSED):
                for begin in (length // 2, max(0, length - _PART)):
                    file.seek(begin)
                    checksum = zlib.crc32(file.read(_PART), checksum)
        file.seek(0)
    return checksum & 0x7FFF_FFFF or 1
