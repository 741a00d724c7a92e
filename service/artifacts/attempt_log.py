"""The kept log of an attempt: what its driver and all ranks wrote, in parts.

A position counts bytes from the driver's first one on. It never changes its meaning, so live streams
resume by it. `driver.log` begins at 0; once it is full, `driver.log.<position>` follows. A log that
outgrows its limit loses parts from its middle: half of the limit holds how it began, the other half
what came last.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import fsspec

from service.artifacts.storage import Storage

# The smaller the parts, the closer to its limit a log stays, and the less is written again in a
# store that cannot append; the larger, the fewer files.
_PARTS = 16
_NAME = re.compile(r"driver\.log(?:\.(\d+))?")
_BLOCK = 1 << 20
_TAIL_BLOCK = 1 << 16


@dataclass(frozen=True)
class Part:
    """A file with the bytes `start` to `end` (exclusive) of the log."""

    start: int
    end: int
    path: str


@dataclass(frozen=True)
class Piece:
    """Bytes from `start` on, which lies behind the place asked for where some were left out.

    `end` is the position behind the last byte that is kept.
    """

    start: int
    data: bytes
    end: int


class AttemptLog:
    """The log of one attempt in the artifacts. One process appends; any number read meanwhile."""

    def __init__(self, storage: Storage, job_id: str, number: int) -> None:
        self._fs, path = fsspec.core.url_to_fs(storage.log_uri(job_id, number))
        self._first = str(path)
        self._folder = self._first.rpartition("/")[0]

    def parts(self) -> list[Part]:
        """What is kept, in order; none before the driver has written anything."""
        # A log grows while it is read: what a listing once said of it is of no use.
        self._fs.invalidate_cache(self._folder)
        try:
            entries = self._fs.ls(self._folder, detail=True)
        except FileNotFoundError:
            return []
        found = []
        for entry in entries:
            name = _NAME.fullmatch(entry["name"].rpartition("/")[2])
            if name is not None:
                start = int(name[1] or 0)
                found.append(Part(start, start + int(entry["size"]), entry["name"]))
        return sorted(found, key=lambda part: part.start)

    def end(self) -> int:
        """The position behind the last byte that is kept."""
        return max((part.end for part in self.parts()), default=0)

    def read(self, position: int, count: int) -> Piece:
        """At most `count` bytes from a position on, or from the next one that is kept."""
        while True:
            parts = self.parts()
            end = parts[-1].end if parts else 0
            parts = [part for part in parts if part.end > position]
            if not parts:
                return Piece(position, b"", end)
            start = stop = max(position, parts[0].start)
            data = b""
            try:
                for part in parts:
                    if part.start > stop or stop == start + count:
                        break
                    data += self._bytes(part, stop, min(part.end, start + count))
                    stop = start + len(data)
            except FileNotFoundError:
                continue  # It was left out in between.
            return Piece(start, data, end)

    def text(self) -> Iterator[bytes]:
        """All of it as it is now, with a line where something was left out."""
        position, end = 0, self.end()
        while position < end:
            piece = self.read(position, min(_BLOCK, end - position))
            if piece.start > position:
                yield left_out(piece.start - position)
            if not piece.data:
                return
            yield piece.data
            position = piece.start + len(piece.data)

    def tail(self, lines: int) -> tuple[bytes, int]:
        """The last lines and the position where they begin.

        They go back no further than to where something was left out, which a first line then says.
        """
        parts = self.parts()
        position = parts[-1].end if parts else 0
        gap = breaks = 0
        blocks: list[bytes] = []  # From the last one back; put together once, for they may be many.
        # One more line break than lines: the one that ends the line before them.
        while parts and breaks <= lines:
            part = parts[-1]
            if position == part.start:
                parts.pop()
                gap = position - (parts[-1].end if parts else 0)
                if gap:
                    break
                continue
            start = max(part.start, position - _TAIL_BLOCK)
            try:
                block = self._bytes(part, start, position)
            except FileNotFoundError:
                break  # It was left out in between.
            blocks.append(block)
            breaks += block.count(b"\n")
            position = start
        text = b"".join(reversed(blocks))
        every = text.splitlines(keepends=True)
        kept = b"".join(every[-lines:] if lines else [])
        note = left_out(gap) if gap and len(every) < lines else b""
        return note + kept, position + len(text) - len(kept)

    def append(self, position: int, data: bytes, limit: int) -> None:
        """Add the bytes at `position`; leave out from the middle what exceeds `limit`.

        What is kept already is not added again, and what a position lies ahead is left out. Parts
        are divided behind a line break where there is one.
        """
        each = max(1, limit // _PARTS)
        last = next(reversed(self.parts()), None)
        if last is not None and position < last.end:
            position, data = last.end, data[last.end - position :]
        while data:
            goes_on = last is not None and last.end == position < last.start + each
            start = last.start if last is not None and goes_on else position
            stop = _division(data, start + each - position)
            if stop == 0 and goes_on:
                last = None  # What has room for no further line is full.
                continue
            stop = stop or data.find(b"\n") + 1 or len(data)
            path = self._first if start == 0 else f"{self._first}.{start}"
            self._write(path, position - start, data[:stop])
            position, data = position + stop, data[stop:]
            last = Part(start, position, path)
        self._leave_out(limit)

    def _leave_out(self, limit: int) -> None:
        parts = self.parts()
        excess = sum(part.end - part.start for part in parts) - limit
        for part in parts[:-1]:
            if excess <= 0:
                return
            if part.end > limit // 2:
                self._fs.rm_file(part.path)
                excess -= part.end - part.start

    def _bytes(self, part: Part, start: int, stop: int) -> bytes:
        with self._fs.open(part.path, "rb") as file:
            file.seek(start - part.start)
            return bytes(file.read(stop - start))

    def _write(self, path: str, offset: int, data: bytes) -> None:
        protocols = self._fs.protocol
        if "file" in ((protocols,) if isinstance(protocols, str) else protocols):
            self._fs.makedirs(self._folder, exist_ok=True)
            # At its place and not at the end: a dispatcher that lost its lease in the middle of
            # this writes the same bytes once more, not twice.
            with self._fs.open(path, "ab"):
                pass
            with self._fs.open(path, "r+b") as file:
                file.seek(offset)
                file.write(data)
        else:
            # Object stores cannot append; a put replaces the object in one step.
            before = self._fs.cat_file(path, start=0, end=offset) if offset else b""
            self._fs.pipe_file(path, before + data)


def left_out(count: int) -> bytes:
    """The line that stands for bytes of a log that were not kept."""
    return f"[dasl: {count:,} bytes were left out here, see DASL_LOG_MAX_BYTES]\n".encode()


def _division(data: bytes, room: int) -> int:
    """How many bytes of whole lines, or of all that there is, fit into `room`."""
    return len(data) if len(data) <= room else data.rfind(b"\n", 0, room) + 1
