"""Opening of a source's images, with a reason on failure or change.

Checksums detect, before decoding, images replaced after ingest. File times would not do: they differ in copies and
restored backups with the same content.
"""

import io
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import IO, BinaryIO

from dasl_core.data.decode import is_transient, one_sentence
from dasl_core.data.decode.reasons import CHANGED, describe_failure
from dasl_core.data.sources import Entry, Source

_PART = 4 << 10
# First bytes of compressed formats (JPEG, PNG, GIF, WebP), where different images differ in length or beginning.
_COMPRESSED = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF")


@contextmanager
def open_image(source: Source, entry: Entry, *, header: bool = False) -> Iterator[BinaryIO]:
    """Context manager that opens an image.

    Args:
        header: whether only the header is read.

    Raises:
        ValueError: it cannot be opened; the message is the reason.
    """
    try:
        file = source.open_header(entry) if header else source.open(entry)
    except OSError as error:
        raise ValueError(describe_failure(error)) from error
    with file:
        yield file


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


@contextmanager
def open_unchanged(source: Source, entry: Entry, checksum: int) -> Iterator[BinaryIO]:
    """Context manager that opens an image, unless it has changed since ingest.

    Args:
        checksum: result of `compute_checksum` at ingest.

    Raises:
        ValueError: it cannot be opened, or has changed; the message is the reason.
    """
    with ExitStack() as stack:
        try:
            file = stack.enter_context(open_image(source, entry))
        except ValueError as error:
            if not source.files or is_transient(str(error)):
                raise
            if _has_changed_inside(source, entry, checksum):
                raise ValueError(CHANGED) from error
            raise
        if compute_checksum(file, inflates=source.inflates) != checksum:
            raise ValueError(CHANGED)
        yield file


def _has_changed_inside(source: Source, entry: Entry, checksum: int) -> bool:
    """Whether an archive or a table has other content where ingest read an image's header."""
    try:
        with open_image(source, entry, header=True) as file:
            return compute_checksum(file, inflates=source.inflates) != checksum
    except ValueError:
        return True
