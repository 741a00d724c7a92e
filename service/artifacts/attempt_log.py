"""The stored log of an attempt: the output of its driver and all ranks, in several files (parts).

A position is the number of bytes that the driver wrote before it. Positions never change, so live
streams resume by them. `driver.log` begins at 0; once it is full, `driver.log.<position>` follows. A
log that exceeds its limit loses parts from its middle: half of the limit holds its beginning, the
other half its end.

An object store cannot append. There, new bytes become a separate object, `driver.log.<start>-<end>`, which
absorbs earlier objects, so that each object is larger than all later ones of its part. An object at least
doubles whenever it is rewritten: a log of n bytes costs O(n log n) written bytes and has O(log n) objects in
each part. Objects never change, so readers and a second writer always see complete ones. An object that a
larger one covers was left by a killed writer, and the next writer removes it.

The name of a further file, `driver.log.of-<submission>`, says to which submission the log belongs: a restored
database repeats an attempt whose files still exist.
"""

import re
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from service.artifacts.storage import Storage
from service.object_store import open_store

# Smaller parts keep a log closer to its limit; larger ones mean fewer files.
_PARTS = 16
_NAME = re.compile(r"driver\.log(?:\.(\d+)(?:-\d+)?)?")
_BLOCK = 1 << 20
_TAIL_BLOCK = 1 << 16


@dataclass(frozen=True)
class Part:
    """A file that holds the bytes `start` to `end` (exclusive) of the log, from `offset` on."""

    start: int
    end: int
    path: str
    offset: int = 0


@dataclass(frozen=True)
class Piece:
    """Bytes read from a log.

    Attributes:
        start: position of the first byte; beyond the requested one if the bytes between were dropped.
        end: the end of the stored log.
    """

    start: int
    data: bytes
    end: int


class AttemptLog:
    """The log of one attempt in the artifact store, for one writer and any number of readers."""

    def __init__(self, storage: Storage, job_id: str, number: int) -> None:
        self._fs, self._first = open_store(storage.log_uri(job_id, number))
        self._folder, self._owner = self._first.rpartition("/")[0], f"{self._first}.of-"

    def parts(self) -> list[Part]:
        """The stored parts in order; empty before the driver has written anything."""
        return self._list()[0]

    def _list(self) -> tuple[list[Part], list[Part]]:
        """Return the stored parts without overlaps, and the parts that others cover."""
        stored = []
        for entry in self._entries():
            name = _NAME.fullmatch(entry["name"].rpartition("/")[2])
            if name is not None:
                start = int(name[1] or 0)
                stored.append(Part(start, start + int(entry["size"]), entry["name"]))
        parts: list[Part] = []
        covered = []
        for part in sorted(stored, key=lambda part: (part.start, -part.end)):
            end = parts[-1].end if parts else 0
            if part.end <= end:
                covered.append(part)
            else:
                skipped = max(0, end - part.start)
                parts.append(Part(part.start + skipped, part.end, part.path, skipped))
        return parts, covered

    def _entries(self) -> list[dict[str, Any]]:
        # A cached listing would be stale: the log grows while it is read.
        self._fs.invalidate_cache(self._folder)
        try:
            entries: list[dict[str, Any]] = self._fs.ls(self._folder, detail=True)
        except FileNotFoundError:
            return []
        return entries

    def belongs_to(self, submission_id: str) -> bool:
        """Whether `begin` was last called for this submission."""
        return self._owners() == [f"{self._owner}{submission_id}"]

    def begin(self, submission_id: str) -> None:
        """Remove the log of another submission, before this submission's log is written."""
        if owners := self._owners():
            # Remove the owners last, so that an interrupted removal is repeated.
            self._remove_parts()
            for path in owners:
                self._fs.rm_file(path)
        if isinstance(self._fs, LocalFileSystem):
            self._fs.makedirs(self._folder, exist_ok=True)
        self._fs.pipe_file(f"{self._owner}{submission_id}", submission_id.encode())

    def _owners(self) -> list[str]:
        """Return the files that name the log's submission."""
        paths = (str(entry["name"]) for entry in self._entries())
        return [path for path in paths if path.startswith(self._owner)]

    def remove(self) -> None:
        """Remove all parts, the last one first, so that an interrupted removal leaves the beginning."""
        self._remove_parts()
        for path in self._owners():
            self._fs.rm_file(path)

    def _remove_parts(self) -> None:
        parts, covered = self._list()
        # Remove covered parts first: they would become the log once the others are removed.
        for part in (*covered, *reversed(parts)):
            self._fs.rm_file(part.path)

    def end(self) -> int:
        """The position after the last stored byte."""
        return max((part.end for part in self.parts()), default=0)

    def read(self, position: int, count: int) -> Piece:
        """Read at most `count` bytes from a position on, or from the next stored one."""
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
                continue  # The part was dropped or merged in between.
            return Piece(start, data, end)

    def text(self) -> Generator[bytes, None, None]:
        """Read the stored log in blocks, with a line in place of dropped bytes."""
        return self._text(0, self.end())

    def tail(self, lines: int) -> tuple[Generator[bytes, None, None], int]:
        """Return the last lines in blocks, and the position where they begin.

        They reach back at most to the last dropped bytes, which a line then replaces.
        """
        parts = self.parts()
        end = position = parts[-1].end if parts else 0
        left = lines
        while parts and left > 0:
            part = parts[-1]
            if position == part.start:
                parts.pop()
                gap = position - (parts[-1].end if parts else 0)
                if gap:
                    return self._text(position - gap, end), position
                continue
            start = max(part.start, position - _TAIL_BLOCK)
            try:
                block = self._bytes(part, start, position)
            except FileNotFoundError:
                return self.tail(lines)  # The part was dropped or merged in between.
            # The line break at the end of the log ends its last line.
            stop = len(block) - 1 if position == end else len(block)
            breaks = block.count(b"\n", 0, stop)
            if breaks >= left:
                for _ in range(left):
                    stop = block.rindex(b"\n", 0, stop)
                position, left = start + stop + 1, 0
            else:
                position, left = start, left - breaks
        return self._text(position, end), position

    def _text(self, position: int, end: int) -> Generator[bytes, None, None]:
        while position < end:
            piece = self.read(position, min(_BLOCK, end - position))
            if piece.start > position:
                yield omission_line(piece.start - position)
            if not piece.data:
                return
            yield piece.data
            position = piece.start + len(piece.data)

    def append(self, position: int, data: bytes, limit: int) -> None:
        """Add the bytes at `position`, then drop parts from the middle until `limit` is kept.

        Bytes that are already stored are skipped. A position beyond the end leaves a gap.
        Parts end with a whole line where possible.
        """
        part_size = max(1, limit // _PARTS)
        parts, covered = self._list()
        for part in covered:
            self._fs.rm_file(part.path)
        if parts and position < parts[-1].end:
            position, data = parts[-1].end, data[parts[-1].end - position :]
        if isinstance(self._fs, LocalFileSystem):
            self._append_to_files(parts, position, data, part_size)
        else:
            self._append_objects(parts, position, data, part_size)
        self._drop_excess(limit)

    def _append_to_files(
        self, parts: list[Part], position: int, data: bytes, part_size: int
    ) -> None:
        last = parts[-1] if parts else None
        while data:
            has_room = last is not None and last.end == position < last.start + part_size
            start = last.start if last is not None and has_room else position
            stop = _division(data, start + part_size - position)
            if stop == 0 and has_room:
                last = None  # The part has no room for another line: it is full.
                continue
            stop = stop or data.find(b"\n") + 1 or len(data)
            path = self._first if start == 0 else f"{self._first}.{start}"
            self._write(path, position - start, data[:stop])
            position, data = position + stop, data[stop:]
            last = Part(start, position, path)

    def _append_objects(
        self, parts: list[Part], position: int, data: bytes, part_size: int
    ) -> None:
        while data:
            stop = _division(data, part_size) or data.find(b"\n") + 1 or len(data)
            merged = _merged(parts, position, stop, part_size)
            start = merged[0].start if merged else position
            content = b"".join(self._bytes(part, part.start, part.end) for part in merged)
            end = position + stop
            path = f"{self._first}.{start}-{end}"
            self._fs.pipe_file(path, content + data[:stop])
            for part in merged:
                self._fs.rm_file(part.path)
            parts = [*parts[: len(parts) - len(merged)], Part(start, end, path)]
            position, data = end, data[stop:]

    def _drop_excess(self, limit: int) -> None:
        parts = self.parts()
        excess = sum(part.end - part.start for part in parts) - limit
        for part in parts[:-1]:
            if excess <= 0:
                return
            if part.end > limit // 2:
                self._fs.rm_file(part.path)
                excess -= part.end - part.start

    def _bytes(self, part: Part, start: int, stop: int) -> bytes:
        first = part.start - part.offset
        return bytes(self._fs.cat_file(part.path, start=start - first, end=stop - first))

    def _write(self, path: str, offset: int, data: bytes) -> None:
        self._fs.makedirs(self._folder, exist_ok=True)
        # Write at an offset instead of appending, so that a repeated write after a lost lease does not duplicate
        # bytes.
        with self._fs.open(path, "ab"):
            pass
        with self._fs.open(path, "r+b") as file:
            file.seek(offset)
            file.write(data)


def omission_line(count: int) -> bytes:
    """Return the line that replaces `count` dropped bytes of a log."""
    return f"[dasl: {count:,} bytes were left out here, see DASL_LOG_MAX_BYTES]\n".encode()


def _division(data: bytes, room: int) -> int:
    """Return the number of bytes that fit into `room`: all of them, or whole lines."""
    return len(data) if len(data) <= room else data.rfind(b"\n", 0, room) + 1


def _merged(parts: list[Part], position: int, size: int, part_size: int) -> list[Part]:
    """Return the last parts to rewrite together with `size` new bytes at `position`, within one part.

    They begin with the first part that is not larger than all bytes after it. As each part was larger than all later
    ones, each of them at least doubles.
    """
    count = 0
    for number, part in enumerate(reversed(parts), start=1):
        length = part.end - part.start
        if part.end != position or length + size > part_size:
            break
        if length <= size:
            count = number
        position, size = part.start, size + length
    return parts[len(parts) - count :]
