"""Reading of the headers that are not known yet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from dasl_core.data.bounded_map import map_waiting
from dasl_core.data.checksums import checksum_of
from dasl_core.data.decode import Header, read_header
from dasl_core.data.headers import KnownHeaders, identify
from dasl_core.data.opening import open_image
from dasl_core.data.sources import Entry, Source

# New headers are handed out after so many or after this time, whichever is first.
CHUNK = 10_000
_SAVE_SECONDS = 5.0

OnHeaders = Callable[[KnownHeaders], None]
"""Called with new headers every few seconds, to save them: an ingest that is killed need not read them again."""


def read_headers(
    source: Source,
    entries: Sequence[Entry],
    threads: int,
    known: KnownHeaders,
    on_progress: Callable[[int, int], None],
    on_headers: OnHeaders,
) -> tuple[np.ndarray, list[Header | str]]:
    """Read the headers of all images but those that are known.

    Args:
        on_progress: called with the number of headers that are known or read so far, and that of all.

    Returns:
        The digests (N, 2) of the images; and the header of each, or why the image cannot be used.
    """
    digests = identify(entries, source.files)
    outcomes: list[Header | str | None] = [*known.find(digests)]
    unknown = [position for position, outcome in enumerate(outcomes) if outcome is None]
    unsaved: list[int] = []
    headers: list[Header] = []
    saved_at = time.monotonic()
    outcomes_read = _read(source, [entries[each] for each in unknown], threads)
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
            on_headers(KnownHeaders.of(digests[unsaved], headers))
            unsaved, headers, saved_at = [], [], time.monotonic()
    return digests, [each for each in outcomes if each is not None]


def _read(source: Source, entries: Sequence[Entry], threads: int) -> Iterator[Header | str]:
    """Read headers; yield each, or why the image cannot be used, in order."""

    def read(entry: Entry) -> Header | str:
        try:
            with open_image(source, entry, header=True) as file:
                checksum = checksum_of(file, inflates=source.inflates)
                return read_header(file, entry.key)._replace(checksum=checksum)
        except ValueError as error:
            return str(error)

    return map_waiting(threads, read, entries)
