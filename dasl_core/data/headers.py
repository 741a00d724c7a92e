"""Headers of images, stored so that the next ingest reads only those of new and changed images."""

from __future__ import annotations

import hashlib
import io
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from dasl_core.data.array_file import damage_as, read_arrays, write_arrays
from dasl_core.data.bounded_map import map_waiting
from dasl_core.data.decode import Header, PixelType, read_header
from dasl_core.data.opening import compute_checksum, open_image
from dasl_core.data.sources import Entry, Source

# Increased when the same bytes give another header, so that all headers are read again.
_FORMAT = 2
# New headers are passed on after this number or this time, whichever is first.
CHUNK = 10_000
_SAVE_SECONDS = 5.0
# Metadata and previews of an image file that is inflated.
_MOST_BESIDE_PIXELS = 32 << 20


def identify(entries: Sequence[Entry], files: Sequence[str]) -> np.ndarray:
    """Compute digests (N, 2) uint64 of everything that changes when an image does.

    Args:
        files: files of the source, because adding an archive changes the positions of others.
    """
    digests = bytearray()
    for entry in entries:
        file = files[entry.file] if files else ""
        text = "\0".join((entry.key, file, f"{entry.offset} {entry.length} {entry.stamp}"))
        digests += hashlib.blake2b(text.encode(), digest_size=16).digest()
    return np.frombuffer(bytes(digests), np.uint64).reshape(-1, 2)


_Kind = tuple[PixelType, str, bool, int, bool]


class HeaderTable:
    """Headers by the digests of their images (`identify`), in arrays: 36 bytes an image.

    Attributes:
        digests: (N, 2) uint64.
        values: (N, 5) int32: width, height, bands, position in `kinds`, and checksum.
        kinds: what else occurs in headers: type, format, whether bands are color, frames, and whether alpha is marked.
        outcome: digest of the ingest that read them; empty if it did not finish.
    """

    def __init__(
        self,
        digests: np.ndarray,
        values: np.ndarray,
        kinds: Sequence[_Kind] = (),
        outcome: str = "",
    ) -> None:
        order = np.argsort(digests[:, 0], kind="stable")
        self.digests, self.values = digests[order], values[order]
        self.kinds = [(*kind,) for kind in kinds]
        self.outcome = outcome

    @classmethod
    def none(cls) -> HeaderTable:
        """Return the empty table, for a first ingest."""
        return cls(np.zeros((0, 2), np.uint64), np.zeros((0, 5), np.int32))

    @classmethod
    def build(
        cls, digests: np.ndarray, headers: Sequence[Header], outcome: str = ""
    ) -> HeaderTable:
        """Build a table from the digests and headers of images."""
        kinds: dict[_Kind, int] = {}
        values = np.array(
            [
                (*header[:3], kinds.setdefault(header[3:-1], len(kinds)), header.checksum)
                for header in headers
            ],
            np.int32,
        )
        return cls(digests, values.reshape(-1, 5), list(kinds), outcome)

    @classmethod
    def merged(cls, tables: Sequence[HeaderTable]) -> HeaderTable:
        """Merge tables, with the outcome of the first."""
        kinds: list[_Kind] = []
        values = []
        for table in tables:
            shifted = table.values.copy()
            shifted[:, 3] += len(kinds)
            values.append(shifted)
            kinds += table.kinds
        digests = np.concatenate([table.digests for table in tables])
        return cls(digests, np.concatenate(values), kinds, tables[0].outcome)

    def __len__(self) -> int:
        return len(self.digests)

    def find(self, digests: np.ndarray) -> list[Header | None]:
        """Look up the header of each image (N, 2); None if it is missing."""
        if not len(self):
            return [None] * len(digests)
        position = np.searchsorted(self.digests[:, 0], digests[:, 0])
        position[position == len(self)] = 0
        is_known = (self.digests[position] == digests).all(axis=1)
        headers: list[Header | None] = []
        for known, row in zip(is_known.tolist(), self.values[position].tolist(), strict=True):
            width, height, bands, kind, checksum = row
            header = Header(width, height, bands, *self.kinds[kind])
            headers.append(header._replace(checksum=checksum) if known else None)
        return headers

    def save(self, path: Path) -> None:
        """Write the table atomically."""
        about = {"format": _FORMAT, "kinds": self.kinds, "outcome": self.outcome}
        write_arrays(path, {"digests": self.digests, "values": self.values}, about)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> HeaderTable:
        """Read a file that `save` wrote.

        Raises:
            ValueError: it is damaged, or of another format.
            OSError: it cannot be read.
        """
        with damage_as(f"{path} has no headers of images"):
            arrays, about = read_arrays(Path(path), _FORMAT)
            digests, values = np.array(arrays["digests"]), np.array(arrays["values"])
            if digests.shape != (len(values), 2) or values.shape != (len(digests), 5):
                raise ValueError("its lists differ in length")
            return cls(digests, values, about["kinds"], about["outcome"])


OnHeaders = Callable[[HeaderTable], None]
"""Called with new headers every few seconds to save them, so that a killed ingest does not read them again."""


def read_headers(
    source: Source,
    entries: Sequence[Entry],
    threads: int,
    known: HeaderTable,
    on_progress: Callable[[int, int], None],
    on_headers: OnHeaders,
) -> tuple[np.ndarray, list[Header | str]]:
    """Read the headers of all images except those in `known`.

    Args:
        on_progress: called with the number of headers stored or read so far, and the total.

    Returns:
        The digests (N, 2) of the images, and for each its header or why it cannot be used.
    """
    digests = identify(entries, source.files)
    outcomes: list[Header | str | None] = [*known.find(digests)]
    unknown = [position for position, outcome in enumerate(outcomes) if outcome is None]
    unsaved: list[int] = []
    headers: list[Header] = []
    saved_at = time.monotonic()
    outcomes_read = _read(source, [entries[position] for position in unknown], threads)
    known_before = len(entries) - len(unknown)
    on_progress(known_before, len(entries))
    for number, (position, outcome) in enumerate(zip(unknown, outcomes_read, strict=True), 1):
        outcomes[position] = outcome
        on_progress(known_before + number, len(entries))
        if isinstance(outcome, str):
            continue  # another ingest may be able to read it
        unsaved.append(position)
        headers.append(outcome)
        if len(unsaved) >= CHUNK or time.monotonic() - saved_at >= _SAVE_SECONDS:
            on_headers(HeaderTable.build(digests[unsaved], headers))
            unsaved, headers, saved_at = [], [], time.monotonic()
    return digests, [outcome for outcome in outcomes if outcome is not None]


def _read(source: Source, entries: Sequence[Entry], threads: int) -> Iterator[Header | str]:
    """Read headers in order; yield each, or why the image cannot be used."""

    def read(entry: Entry) -> Header | str:
        try:
            with open_image(source, entry, header=True) as file:
                checksum = compute_checksum(file, inflates=source.inflates)
                header = read_header(file, entry.key)
                if source.inflates:
                    _check_inflated(file, header)
                return header._replace(checksum=checksum)
        except ValueError as error:
            return str(error)

    return map_waiting(threads, read, entries)


def _check_inflated(file: IO[bytes], header: Header) -> None:
    """Check that an image is no larger than its pixels need: it is inflated whole, beside those of other threads."""
    pixels = header.width * header.height * header.bands * np.dtype(header.dtype).itemsize
    size = file.seek(0, io.SEEK_END)
    if size > 2 * pixels + _MOST_BESIDE_PIXELS:
        raise ValueError(
            f"it inflates to {size >> 20} MiB, but an image of {header.width} x {header.height} pixels has "
            f"{max(1, pixels >> 20)} MiB"
        )
