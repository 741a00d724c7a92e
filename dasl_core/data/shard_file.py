"""File format of a shard: records of consecutive images and a table of their offsets.

The file is the records, one after the other, then the table, the reasons of images without a record as JSON, and a
footer with the SHA-256 of everything before it. It is written sequentially, so it can be copied and
checked as a stream.
"""

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from dasl_core.atomic import sync

_MAGIC = b"DASLshd1"
_FOOTER = struct.Struct("<8sII32s")
_RECORD = struct.Struct("<QII")  # start, length, and CRC-32
# Bytes in flight to a slow disk.
FLUSH_BYTES = 16 << 20
_CHUNK = 4 << 20

Read = Callable[[int, int], bytes]
"""Reads a number of bytes of a file from an offset on."""


class Shard(NamedTuple):
    """The end of a shard: its table and footer.

    Attributes:
        images: number of images.
        reasons: why images have no record, by position in the shard.
        begin: offset of the table in the file.
        size: size of the file.
    """

    images: int
    reasons: dict[int, str]
    begin: int
    size: int

    def record(self, position: int, read: Read) -> bytes | None:
        """Read the record of an image, None if it has none; a ValueError if it is damaged, an OSError if unreadable."""
        entry = read(self.begin + position * _RECORD.size, _RECORD.size)
        begin, length, crc = _RECORD.unpack(entry)
        if not length:
            return None
        content = read(begin, length) if begin + length <= self.begin else b""
        if len(content) != length or zlib.crc32(content) != crc:
            raise ValueError(f"image {position} of the shard is damaged")
        return content


class ShardWriter:
    """Writes a shard to an open file from its beginning, with few bytes in flight; an OSError if that fails."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._table: list[tuple[int, int, int]] = []
        self._reasons: dict[int, str] = {}
        self._written = self._flushed = 0

    def append(self, record: bytes | str) -> None:
        """Write the next image's record, or the reason why it has none."""
        if isinstance(record, str):
            self._reasons[len(self._table)] = record
            self._table.append((self._written, 0, 0))
            return
        self._table.append((self._written, len(record), zlib.crc32(record)))
        self._write(record)

    def finish(self) -> int:
        """Write the table and the footer, durably; return the size of the file."""
        reasons = json.dumps(self._reasons).encode()
        count = len(self._table)
        self._write(b"".join(_RECORD.pack(*entry) for entry in self._table))
        self._write(reasons)
        self._write(_FOOTER.pack(_MAGIC, count, len(reasons), self._digest.digest()))
        self._file.truncate(self._written)
        self._flush()
        return self._written

    def _write(self, content: bytes) -> None:
        self._digest.update(content)
        view = memoryview(content)
        while view:
            view = view[self._file.write(view) :]
        self._written += len(content)
        if self._written - self._flushed >= FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        """Wait for the disk, and drop the pages from the page cache."""
        os.fsync(self._file.fileno())
        if hasattr(os, "posix_fadvise"):
            length = self._written - self._flushed
            os.posix_fadvise(self._file.fileno(), self._flushed, length, os.POSIX_FADV_DONTNEED)
        self._flushed = self._written


def read_shard(read: Read, size: int, count: int) -> Shard:
    """Read the end of a shard of `size` bytes that should have `count` images.

    Raises:
        ValueError: it is cut off, or not such a shard.
        OSError: it cannot be read.
    """
    if size < _FOOTER.size:
        raise ValueError("it is cut off")
    magic, images, length, _ = _FOOTER.unpack(read(size - _FOOTER.size, _FOOTER.size))
    if magic != _MAGIC or images != count:
        raise ValueError("it is cut off, or another file")
    begin = size - _FOOTER.size - length - count * _RECORD.size
    if begin < 0:
        raise ValueError("it is cut off")
    reasons = json.loads(read(size - _FOOTER.size - length, length))
    if not isinstance(reasons, dict):
        raise ValueError("its reasons are damaged")
    return Shard(count, reasons_by_position(reasons), begin, size)


def reasons_by_position(reasons: Mapping[str, object]) -> dict[int, str]:
    """Convert the reasons of a shard from JSON, which has no numbers as keys."""
    return {int(at): str(why) for at, why in reasons.items()}


def check_shard(path: Path) -> None:
    """Check a shard against the SHA-256 in its footer; a ValueError if it is damaged, an OSError if unreadable."""
    size = path.stat().st_size
    digest, remaining = hashlib.sha256(), size - _FOOTER.size
    with open(path, "rb") as file:
        while remaining > 0 and (chunk := file.read(min(_CHUNK, remaining))):
            digest.update(chunk)
            remaining -= len(chunk)
        footer = file.read(_FOOTER.size)
    if len(footer) != _FOOTER.size or not footer.startswith(_MAGIC):
        raise ValueError("it is cut off, or another file")
    if _FOOTER.unpack(footer)[3] != digest.digest():
        raise ValueError("its content does not have the checksum that it should have")


@contextmanager
def opened(path: Path) -> Iterator[Read]:
    """Context manager that opens a local shard and yields the function that reads it."""
    file = os.open(path, os.O_RDONLY)
    try:
        yield lambda begin, length: os.pread(file, length, begin)
    finally:
        os.close(file)


def publish(partial: Path, target: Path) -> None:
    """Give a complete, flushed file its name, durably."""
    partial.replace(target)
    sync(target.parent)
