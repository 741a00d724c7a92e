"""Checksums by which an image that was replaced after ingest is noticed before it is decoded.

Not the times of files: those of a copy on another machine, or of a restored backup, differ though the content does not.
"""

from __future__ import annotations

import io
import zlib
from typing import IO

from dasl_core.data.decode import one_sentence

_PART = 4 << 10
# How files of compressed formats begin (JPEG, PNG, GIF, WebP). Another image of these has another length or beginning.
_COMPRESSED = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF")


def checksum_of(file: IO[bytes], *, inflates: bool) -> int:
    """Return a positive checksum (31 bits) of the length and the first 4 KiB of an image.

    Of a format that may store pixels as they are, in which images of one size have one length, also of 4 KiB in the
    middle and at the end.

    Args:
        file: can seek, and stays open, at its begin.
        inflates: the file may be one that is inflated while it is read, so only its beginning is used.

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
