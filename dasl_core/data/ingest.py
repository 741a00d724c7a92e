"""Ingest: list the images of a source, read their headers, and decode a sample of them.

A broken file never fails an ingest, let alone a job: it is skipped and listed with the reason.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from dasl_core.data.bounded_map import AHEAD_PER_THREAD, bounded_map
from dasl_core.data.classes import choose_split, label_entries
from dasl_core.data.decode import EXTENSIONS, Header, read_header
from dasl_core.data.duplicates import describe, equal_groups, similar_groups
from dasl_core.data.index import DatasetIndex
from dasl_core.data.opening import open_image
from dasl_core.data.pixel_facts import PixelFacts
from dasl_core.data.sample import take_sample
from dasl_core.data.sources import Entry, Listing, Skipped, Source, SourceRecord, find_source
from dasl_core.data.strings import Strings
from dasl_core.machine import usable_cores
from dasl_core.spec.locations import EVERY_FOLDER, ReadableFolders
from dasl_core.spec.source import SourceOptions

# Threads that wait for an object store take no processor time.
_REMOTE_THREADS = 32
# Files of equal size are compared by their content, if they have at most so many bytes together.
_COMPARED_BYTES = 2 << 30

OnProgress = Callable[[int, int], None]
"""Called with the number of reads so far, and of those that are known to be needed: of each header, then of each image
of the sample, then of each file that is compared with others."""


def _no_progress(read: int, total: int) -> None: ...


def ingest_folder(
    location: str | os.PathLike[str],
    workers: int | None = None,
    *,
    options: SourceOptions | None = None,
    allowed: ReadableFolders = EVERY_FOLDER,
    on_progress: OnProgress = _no_progress,
) -> DatasetIndex:
    """Find, check and label the images of a folder, an archive, a list or a table.

    * Hidden files and folders (leading dot) are skipped; files without the extension of an image
      (`EXTENSIONS`) are ignored and counted.
    * The header of every other file is read, and a sample of the images is decoded (`sample`): all of a
      small data set. A file is skipped, with a reason, when that fails, when it is no regular file, when its
      name is not UTF-8, and when it is a link that may not be followed.
    * Labels are those of the source, or the names of the first-level folders, if every usable image lies
      in one and there are at least two; otherwise the data set has no labels, which pretraining does not
      need.
    * The order is that of the sorted keys, the same on every machine.

    Args:
        location: as of `find_source`: a path, pattern or URI.
        workers: threads; None: one per usable core. Images whose decoding does not fit into a quarter of
            the free memory together wait.
        options: which images are used, and where their labels are.
        allowed: folders that may be read, in which the location must lie with all that is inside.
        on_progress: called in this thread after each file that is found or read.

    Raises:
        ValueError: the location is missing, not readable, not allowed, holds no usable image, or is divided into
            splits ("train", "test", ...) of which none is chosen: these are data sets of their own.
    """
    options = options or SourceOptions()
    record = find_source(os.fspath(location), options, allowed)
    source, listing = list_source(record, allowed, on_progress)
    index = ingest_listing(record, source, listing, workers, on_progress=on_progress)
    return replace(index, allowed=allowed)


def list_source(
    record: SourceRecord,
    allowed: ReadableFolders = EVERY_FOLDER,
    on_progress: OnProgress = _no_progress,
) -> tuple[Source, Listing]:
    """Open a source, and list its entries for `ingest_listing`.

    Raises:
        ValueError: it cannot be read, or may not be.
    """
    try:
        source = record.open(allowed)
        return source, source.list_entries(lambda found: on_progress(0, found))
    except OSError as error:
        raise ValueError(f"{record.uri} cannot be read: {error.strerror or error}") from error


def ingest_listing(
    record: SourceRecord,
    source: Source,
    listing: Listing,
    workers: int | None = None,
    *,
    on_progress: OnProgress = _no_progress,
) -> DatasetIndex:
    """Check and label the images of a listing; see `ingest_folder`.

    Raises:
        ValueError: no image is usable, or the source is divided into splits.
    """
    threads = workers or usable_cores()
    chosen = choose_split(record, listing.entries)
    num_ignored = listing.num_ignored + len(listing.entries) - len(chosen)
    skipped = [*listing.skipped]
    entries: list[Entry] = []
    headers: list[Header] = []
    reading = threads if "://" not in record.root else max(threads, _REMOTE_THREADS)
    outcomes = _read_headers(source, chosen, reading)
    for number, (entry, outcome) in enumerate(zip(chosen, outcomes, strict=True), start=1):
        on_progress(number, len(chosen))
        if isinstance(outcome, str):
            skipped.append(Skipped(entry.key, outcome))
        else:
            entries.append(entry)
            headers.append(outcome)
    sample = take_sample(
        source,
        entries,
        headers,
        PixelFacts.of(headers),
        threads,
        lambda number, total: on_progress(len(chosen) + number, len(chosen) + total),
    )
    skipped += [Skipped(entries[position].key, why) for position, why in sample.damaged.items()]
    usable = [position for position in range(len(entries)) if position not in sample.damaged]
    if not usable:
        raise ValueError(_no_images(record.uri, sorted(skipped), num_ignored))
    read = len(chosen) + len(sample.fingerprints) + len(sample.damaged)
    labels, class_names, kept = label_entries(record, [entries[each] for each in usable])
    num_ignored += len(usable) - len(kept)
    usable = [usable[each] for each in kept]
    paths = [entries[each].key for each in usable]
    return DatasetIndex(
        source=record,
        paths=Strings.of(paths),
        labels=labels,
        class_names=class_names,
        sizes=np.array([headers[each][:2] for each in usable], np.int32).reshape(-1, 2),
        places=np.array([_place(entries[each]) for each in usable], np.int64).reshape(-1, 4),
        skipped=sorted(skipped),
        num_ignored=num_ignored,
        pixels=sample.pixels,
        duplicates={
            "equal": _equal_files(
                source,
                [entries[each] for each in usable],
                reading,
                lambda number, total: on_progress(read + number, read + total),
            ),
            "similar": _similar_images(usable, paths, sample.fingerprints),
        },
    )


def _place(entry: Entry) -> tuple[int, int, int, int]:
    return entry.file, entry.offset, entry.length, entry.stamp


def _read_headers(source: Source, entries: list[Entry], threads: int) -> Iterator[Header | str]:
    """Read all headers; return each, or why the image cannot be used, in order."""

    def read(entry: Entry) -> Header | str:
        try:
            with open_image(source, entry) as file:
                return read_header(file, entry.key)
        except ValueError as error:
            return str(error)

    with ThreadPoolExecutor(threads, "headers") as pool:
        yield from bounded_map(pool, read, entries, AHEAD_PER_THREAD * threads)


def _equal_files(
    source: Source, entries: list[Entry], threads: int, on_progress: OnProgress
) -> dict[str, object]:
    """Report equal files; only those of equal sizes are read, and at most `_COMPARED_BYTES` of them."""
    lengths = Counter(entry.length for entry in entries if entry.length > 0)
    candidates = [position for position, entry in enumerate(entries) if lengths[entry.length] > 1]
    if sum(entries[position].length for position in candidates) > _COMPARED_BYTES:
        return describe([], [], 0)

    def digest(position: int) -> bytes | None:
        try:
            with open_image(source, entries[position]) as file:
                return hashlib.blake2b(file.read(), digest_size=16).digest()
        except (OSError, ValueError):
            return None  # it changed since its header was read; training reports it

    digests: dict[int, bytes] = {}
    with ThreadPoolExecutor(threads, "compare") as pool:
        found = bounded_map(pool, digest, candidates, AHEAD_PER_THREAD * threads)
        for number, (position, value) in enumerate(zip(candidates, found, strict=True), start=1):
            if value is not None:
                digests[position] = value
            on_progress(number, len(candidates))
    paths = [entry.key for entry in entries]
    return describe(equal_groups(digests), paths, len(entries))


def _similar_images(
    positions: list[int], paths: list[str], fingerprints: dict[int, int]
) -> dict[str, object]:
    """Report similar images of the sample.

    Args:
        positions: of the usable images among those that were read.
        paths: of the usable images.
        fingerprints: of the sample, by position among those that were read.
    """
    found = {
        number: fingerprints[position]
        for number, position in enumerate(positions)
        if position in fingerprints
    }
    return describe(similar_groups(found), paths, len(found))


def _no_images(location: str, skipped: Sequence[Skipped], num_ignored: int) -> str:
    message = f"{location} holds no usable image"
    if skipped:
        message += f"; {len(skipped)} skipped, such as {skipped[0].path} ({skipped[0].reason})"
    if num_ignored:
        message += f"; {num_ignored} other files ignored"
    return f"{message}; expected files that end in {', '.join(sorted(EXTENSIONS))}"
