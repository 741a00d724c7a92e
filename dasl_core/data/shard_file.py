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
from collections.abc import Callable
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from dasl_core.atomic import sync

_MAGIC = b"DASLshd1"
_FOOTER = struct.Struct("<8sII32s")
_RECORD = np.dtype([("begin", "<u8"), ("length", "<u4"), ("crc", "<u4")])
# Bytes that wait to be written to the disk, however slow it is.
FLUSH_BYTES = 16 << 20
_CHUNK = 4 << 20

Read = Callable[[int, int], bytes]
"""Reads a number of bytes of a file from an offset on."""


class Shard(NamedTuple):
    """What the end of a shard says.

    Attributes:
        table: (N,) where the record of each image is; its length is 0 for images that cannot be read.
        reasons: why these cannot be read, by position in the shard.
        begin: where the table is in the file.
        size: of the file.
    """

    table: np.ndarray
    reasons: dict[int, str]
    begin: int
    size: int

    def record(self, position: int, read: Read) -> bytes | None:
        """Read the record of an image; None if it has none.

        Raises:
            ValueError: the record is damaged.
            OSError: it cannot be read.
        """
        begin, length, crc = self.table[position].tolist()
        if not length:
            return None
        content = read(begin, length)
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
        self._write(np.array(self._table, _RECORD).tobytes())
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
    table_size = count * _RECORD.itemsize
    # One read where the reasons are short, which they nearly always are.
    tail = _tail(read, size, table_size + _FOOTER.size + 1024)
    magic, found, length, _ = _footer(tail)
    if magic != _MAGIC or found != count:
        raise ValueError("it is cut off, or another file")
    needed = table_size + length + _FOOTER.size
    if needed > size:
        raise ValueError("it is cut off")
    if len(tail) < needed:
        tail = _tail(read, size, needed)
    body = tail[len(tail) - needed : len(tail) - _FOOTER.size]
    reasons = {int(at): str(why) for at, why in json.loads(body[table_size:]).items()}
    table = np.frombuffer(body[:table_size], _RECORD)
    ends = table["begin"] + table["length"]
    if count and int(ends.max()) > size - needed:
        raise ValueError("its table is damaged")
    return Shard(table, reasons, size - needed, size)


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
    if len(footer) != _FOOTER.size or _footer(footer)[0] != _MAGIC:
        raise ValueError("it is cut off, or another file")
    if _footer(footer)[3] != digest.digest():
        raise ValueError("its content does not have the checksum that it should have")


def map_shard(path: Path, count: int) -> tuple[Shard, Read]:
    """Open a shard of this machine: its table is mapped into memory, and several threads can read it.

    Raises:
        ValueError: it is cut off, or not such a shard.
        OSError: it cannot be read.
    """
    # Open as long as something refers to `read`, also after another process has removed it.
    file = open(path, "rb", buffering=0)  # noqa: SIM115

    def read(begin: int, length: int) -> bytes:
        return os.pread(file.fileno(), length, begin)

    shard = read_shard(read, os.fstat(file.fileno()).st_size, count)
    table = np.memmap(file, _RECORD, "r", shard.begin, shape=(count,))
    return shard._replace(table=table), read


def publish(partial: Path, target: Path) -> None:
    """Give a complete, flushed file its name, durably."""
    partial.replace(target)
    sync(target.parent)


def _tail(read: Read, size: int, length: int) -> bytes:
    length = min(size, length)
    tail = read(size - length, length)
    if len(tail) != length or length < _FOOTER.size:
        raise ValueError("it is cut off")
    return tail


def _footer(tail: bytes) -> tuple[bytes, int, int, bytes]:
    magic, count, length, digest = _FOOTER.unpack(tail[-_FOOTER.size :])
    return magic, count, length, digest
