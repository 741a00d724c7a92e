"""Members of a tar archive, even if damaged."""

import tarfile
from collections.abc import Callable, Iterator
from typing import BinaryIO

import numpy as np

from dasl_core.text import printable

_BLOCK = tarfile.BLOCKSIZE
_SEARCHED = 1 << 20
# Offset of the checksum in a header, and its number of digits or blanks.
_CHECKSUM, _DIGITS = 148, 6


def read_members(
    file: BinaryIO, size: int, on_damage: Callable[[str], None]
) -> Iterator[tarfile.TarInfo]:
    """Yield the members of an archive; after damage, continue at the next valid header.

    `tarfile` takes a damaged header for the end of the archive.

    Args:
        size: size of the archive in bytes.
        on_damage: called with a sentence for each damaged part.
    """
    start: int | None = 0
    while start is not None:
        file.seek(start)
        problem, at = None, start
        try:
            with tarfile.open(fileobj=file, mode="r:", errors="surrogateescape") as archive:
                while (member := archive.next()) is not None:
                    archive.members = []  # type: ignore[attr-defined]  # drop them, or they fill the memory
                    at = archive.offset
                    if member.size < 0:
                        at = member.offset
                        raise tarfile.ReadError(f"{printable(member.name)} has {member.size} bytes")
                    yield member
                    if at > size:
                        break
        except (tarfile.TarError, ValueError) as error:
            problem = str(error)
        if at > size:  # the last member is cut off
            on_damage(problem or "it is cut off")
            return
        if problem is None and _is_end(file, at):
            return
        start = _next_header(file, at + _BLOCK)
        rest = "no file is found behind it" if start is None else f"reading went on at {start:,}"
        on_damage(f"{problem or 'a header is invalid'}, at byte {at:,}; {rest}")


def _is_end(file: BinaryIO, offset: int) -> bool:
    """Whether an archive ends at an offset: with the file, or with two blocks of zeros."""
    file.seek(offset)
    return not file.read(2 * _BLOCK).strip(b"\0")


def _next_header(file: BinaryIO, offset: int) -> int | None:
    """Find the first header from an offset on, by its checksum."""
    while True:
        file.seek(offset)
        content = file.read(_SEARCHED)
        blocks = np.frombuffer(content, np.uint8, len(content) // _BLOCK * _BLOCK)
        if not len(blocks):
            return None
        blocks = blocks.reshape(-1, _BLOCK)
        digits = blocks[:, _CHECKSUM : _CHECKSUM + _DIGITS]
        is_octal = ((digits >= ord("0")) & (digits <= ord("7"))) | (digits == ord(" "))
        for position in np.flatnonzero(is_octal.all(axis=1)).tolist():
            try:
                tarfile.TarInfo.frombuf(blocks[position].tobytes(), "utf-8", "surrogateescape")
            except (tarfile.TarError, ValueError):
                continue
            return offset + int(position) * _BLOCK
        offset += len(content)
