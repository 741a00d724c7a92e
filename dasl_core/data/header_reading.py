"""Reading of headers that are not stored yet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from dasl_core.data.bounded_map import map_waiting
from dasl_core.data.checksums import compute_checksum
from dasl_core.data.decode import Header, read_header
from dasl_core.data.headers import HeaderTable, identify
from dasl_core.data.opening import open_image
from dasl_core.data.sources import Entry, Source

# New headers are passed on after this number or this time, whichever is first.
CHUNK = 10_000
_SAVE_SECONDS = 5.0

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
                return read_header(file, entry.key)._replace(checksum=checksum)
        except ValueError as error:
            return str(error)

    return map_waiting(threads, read, entries)
