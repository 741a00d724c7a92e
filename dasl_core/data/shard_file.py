"""One shard: the records of consecutive images, with a table of where each one is, in a file.

The file is the records, one after the other, then the table, the reasons of images without a record as JSON, and a
footer with the SHA-256 of all before it. It is written from the beginning to its end, so it can be
copied and checked as a stream.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from dasl_core.atomic import sync

_MAGIC = b"DASLshd1"
_FOOTER = struct.Struct("<8sII32s")
_RECORD = struct.Struct("<QII")  # begin, length, and CRC-32
# Bytes that wait to be written to the disk, however slow it is.
FLUSH_BYTES = 16 << 20
_CHUNK = 4 << 20

Read = Callable[[int, int], bytes]
"""Reads a number of bytes of a file from an offset on."""


class Shard(NamedTuple):
    """What the end of a shard says.

    Attributes:
        images: how many it is of.
        reasons: why images have no record, by position in the shard.
        begin: where the table is in the file.
        size: of the file.
    """

    images: int
    reasons: dict[int, str]
    begin: int
    size: int

    def record(self, position: int, read: Read) -> bytes | None:
        """Read the record of an image; None if it has none.

        Raises:
            ValueError: the record is damaged.
            OSError: it cannot be read.
        """
        entry = read(self.begin + position * _RECORD.size, _RECORD.size)
        begin, length, crc = _RECORD.unpack(entry)
        if not length:
            return None
        content = read(begin, length) if begin + length <= self.begin else b""
        if len(content) != length or zlib.crc32(content) != crc:
            raise ValueError(f"image {position} of the shard is damaged")
        return content


class ShardWriter:
    """Writes a shard to an open file, from its beginning, with a bounded number of bytes in flight.

    Raises:
        OSError: (all methods) the disk is full, or cannot be written.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._table: list[tuple[int, int, int]] = []
        self._reasons: dict[int, str] = {}
        self._written = self._flushed = 0

    def append(self, record: bytes | str) -> None:
        """Write the next image's record, or note why there is none."""
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
        """Wait for the disk, and let the system forget the pages: else it keeps them until memory is short."""
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
    magic, found, length, _ = _FOOTER.unpack(read(size - _FOOTER.size, _FOOTER.size))
    if magic != _MAGIC or found != count:
        raise ValueError("it is cut off, or another file")
    begin = size - _FOOTER.size - length - count * _RECORD.size
    if begin < 0:
        raise ValueError("it is cut off")
    reasons = json.loads(read(size - _FOOTER.size - length, length))
    if not isinstance(reasons, dict):
        raise ValueError("its reasons are damaged")
    return Shard(count, {int(at): str(why) for at, why in reasons.items()}, begin, size)


def check_shard(path: Path) -> None:
    """Check the SHA-256 of a shard, which its footer has.

    Raises:
        ValueError: it is damaged.
        OSError: it cannot be read.
    """
    size = path.stat().st_size
    digest, left = hashlib.sha256(), size - _FOOTER.size
    with open(path, "rb") as file:
        while left > 0 and (chunk := file.read(min(_CHUNK, left))):
            digest.update(chunk)
            left -= len(chunk)
        footer = file.read(_FOOTER.size)
    if len(footer) != _FOOTER.size or not footer.startswith(_MAGIC):
        raise ValueError("it is cut off, or another file")
    if _FOOTER.unpack(footer)[3] != digest.digest():
        raise ValueError("its content does not have the checksum that it should have")


@contextmanager
def opened(path: Path) -> Iterator[Read]:
    """Open a shard of this machine, and return the function that reads it."""
    file = os.open(path, os.O_RDONLY)
    try:
        yield lambda begin, length: os.pread(file, length, begin)
    finally:
        os.close(file)


def publish(partial: Path, target: Path) -> None:
    """Give a complete, flushed file its name, durably."""
    partial.replace(target)
    sync(target.parent)
