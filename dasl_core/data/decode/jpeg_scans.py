"""Bound on the time that a JPEG takes to decode."""

import re
from collections.abc import Iterator
from typing import IO

from dasl_core.data.decode.header_bounds import MOST_OF_FILE

MOST_SCANS = 100
"""Scans that a JPEG may have; progressive ones have about 10, and libtiff has the same limit."""
MAGIC = b"\xff\xd8\xff"
_END, _SCAN = 0xD9, 0xDA
# Frames whose pixels are complete in one scan, if it has all bands.
_SEQUENTIAL = (0xC0, 0xC1, 0xC9)
# A marker that libjpeg does not pass over in compressed pixels, and of all but the last the length and some content.
_MARKER = re.compile(rb"\xff([^\x00-\xbf\xd0-\xd7\xff])(..)(.{6})", re.DOTALL)
_MARKER_BYTES = 10
_BLOCK = 256 << 10


def check_scans(file: IO[bytes]) -> None:
    """Refuse a JPEG of more than `MOST_SCANS` with a ValueError; other files pass.

    Each scan may take as long as the whole image, and a repeated one has a few hundred bytes.
    """
    file.seek(0)
    # libjpeg passes over what is between the beginning and the next marker.
    if file.read(2) != MAGIC[:2]:
        return
    scans = bands = 0
    for marker, content in _markers(file):
        if marker in _SEQUENTIAL:
            bands = content[5]
        if marker != _SCAN:
            continue
        if not scans and content[0] == bands:
            return  # libjpeg decodes it in one pass and takes no other scan
        scans += 1
        if scans > MOST_SCANS:
            raise ValueError(
                f"the image is a JPEG of more than {MOST_SCANS} scans, which takes too long to decode; save it again"
            )


def _markers(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the markers from here to the end of the image, as libjpeg finds them, with their first content.

    Not those in metadata, such as of a preview, or behind the end, such as of a video of a phone.
    """
    block, at, size = b"", 0, 0
    while True:
        found = _MARKER.search(block, at)
        if found is None:
            # A marker may continue in the next block.
            rest = block[max(at, len(block) - _MARKER_BYTES + 1) :]
            more = file.read(_BLOCK)
            size += len(more)
            if size > MOST_OF_FILE:
                raise ValueError(
                    f"the image is damaged: a JPEG without an end in {MOST_OF_FILE >> 20} MiB"
                )
            if not more:
                return
            block, at = rest + more, 0
            continue
        marker = found[1][0]
        if marker == _END:
            return
        yield marker, found[3]
        at = found.end(1) + max(2, int.from_bytes(found[2], "big"))
        if at > len(block):
            file.seek(at - len(block), 1)
            block, at = b"", 0
