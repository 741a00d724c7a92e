"""Ingest: list the images of a source, read their headers, and decode a sample of them.

A broken file never fails an ingest, let alone a job: it is skipped and listed with the reason.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dasl_core.data.classes import choose_split, label_entries, warnings_of_labels
from dasl_core.data.contact_sheet import ContactSheet, choose
from dasl_core.data.decode import EXTENSIONS, Header, is_transient
from dasl_core.data.duplicates import equal_files, similar_images
from dasl_core.data.fitting import misfits
from dasl_core.data.header_reading import OnHeaders, read_headers
from dasl_core.data.headers import KnownHeaders
from dasl_core.data.index import DatasetIndex
from dasl_core.data.pixel_facts import PixelFacts
from dasl_core.data.sample import Sample, sample_positions, take_sample
from dasl_core.data.sources import Entry, Listing, Skipped, Source, SourceRecord, find_source
from dasl_core.data.strings import Strings
from dasl_core.machine import usable_cores
from dasl_core.spec.locations import EVERY_FOLDER, ReadableFolders
from dasl_core.spec.source import SOURCE_ENDINGS, SourceOptions
from dasl_core.text import describe_endings
from dasl_core.vocabulary import IngestPhase

# Threads that wait for an object store take no processor time.
_REMOTE_THREADS = 32
# Raised when an ingest of the same files gives another index, so that a refresh makes a new version.
FORMAT = 1

OnProgress = Callable[[int, int, IngestPhase], None]
"""Called with how many images are read in a phase, and of how many: 0 of those found so far; those whose header is known
of all; those decoded of the sample; those read of the files that are compared."""


def _no_progress(read: int, total: int, phase: IngestPhase) -> None: ...


def _not_saved(headers: KnownHeaders) -> None: ...


@dataclass(frozen=True)
class Previous:
    """What earlier ingests of a source have left.

    Attributes:
        headers: that need not be read again.
        index: of the last one that ended, from which `headers.outcome` is.
        has_contact_sheet: False if that of the last one is lost; then it is drawn again, also if nothing has changed.
    """

    headers: KnownHeaders = field(default_factory=KnownHeaders.none)
    index: DatasetIndex | None = None
    has_contact_sheet: bool = True

    def would_repeat(self, outcome: str) -> bool:
        """Whether an ingest with this outcome would give the same index again.

        Not if an image of the sample could not be decoded for a reason that may have passed.
        """
        if self.index is None or self.headers.outcome != outcome:
            return False
        return not any(is_transient(skipped.reason) for skipped in self.index.skipped)


@dataclass(frozen=True)
class Ingested:
    """Result of an ingest.

    Attributes:
        headers: of all images that have one, for the next ingest.
        contact_sheet: None if nothing has changed and there is one, or no image that it would show can be decoded.
        is_unchanged: the index is that of the previous ingest.
    """

    index: DatasetIndex
    headers: KnownHeaders
    contact_sheet: ContactSheet | None
    is_unchanged: bool = False


def ingest_folder(
    location: str | os.PathLike[str],
    workers: int | None = None,
    *,
    options: SourceOptions | None = None,
    allowed: ReadableFolders = EVERY_FOLDER,
    on_progress: OnProgress = _no_progress,
) -> DatasetIndex:
    """Return the index of a first ingest; see `ingest`."""
    return ingest(
        location, workers, options=options, allowed=allowed, on_progress=on_progress
    ).index


def ingest(
    location: str | os.PathLike[str],
    workers: int | None = None,
    *,
    options: SourceOptions | None = None,
    allowed: ReadableFolders = EVERY_FOLDER,
    on_progress: OnProgress = _no_progress,
    previous: Previous | None = None,
    on_headers: OnHeaders = _not_saved,
) -> Ingested:
    """Find, check and label the images of a folder, an archive, a list or a table.

    * Hidden files and folders (leading dot) are skipped; files without the extension of an image
      (`EXTENSIONS`) are ignored and counted.
    * The header of every other file is read, and a sample of the images is decoded (`sample`): all of a
      small data set. A file is skipped, with a reason, when that fails, when it is no regular file, when its
      name is not UTF-8, and when it is a link that may not be followed.
    * An image whose bands, or kind of values, are not those of most is skipped (`misfits`).
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
        previous: what earlier ingests of the same location and options have left. Headers of images whose key, place,
            length and stamp (`Entry`) are known are not read again. If these images have not changed, the result is
            that of a first ingest.
        on_headers: called in this thread with new headers, to save them.

    Raises:
        ValueError: the location is missing, not readable, not allowed, holds no usable image, or is divided into
            splits ("train", "test", ...) of which none is chosen: these are data sets of their own.
    """
    options = options or SourceOptions()
    record = find_source(os.fspath(location), options, allowed)
    source, listing = list_source(record, allowed, on_progress)
    result = ingest_listing(
        record,
        source,
        listing,
        workers,
        on_progress=on_progress,
        previous=previous,
        on_headers=on_headers,
    )
    return replace(result, index=replace(result.index, allowed=allowed))


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
        return source, source.list_entries(lambda found: on_progress(0, found, "listing"))
    except OSError as error:
        raise ValueError(f"{record.uri} cannot be read: {error.strerror or error}") from error


def ingest_listing(
    record: SourceRecord,
    source: Source,
    listing: Listing,
    workers: int | None = None,
    *,
    on_progress: OnProgress = _no_progress,
    previous: Previous | None = None,
    on_headers: OnHeaders = _not_saved,
) -> Ingested:
    """Check and label the images of a listing; see `ingest`.

    Raises:
        ValueError: no image is usable, or the source is divided into splits.
    """
    previous = previous or Previous()
    threads = workers or usable_cores()
    reading = threads if "://" not in record.root else max(threads, _REMOTE_THREADS)
    chosen, skipped = choose_split(record, listing)
    digests, outcomes = read_headers(
        source,
        chosen,
        reading,
        previous.headers,
        lambda read, total: on_progress(read, total, "headers"),
        on_headers,
    )
    failed = [
        Skipped(entry.key, outcome)
        for entry, outcome in zip(chosen, outcomes, strict=True)
        if isinstance(outcome, str)
    ]
    outcome = _digest(record, listing, failed)
    usable = [position for position, each in enumerate(outcomes) if not isinstance(each, str)]
    entries = [chosen[position] for position in usable]
    headers = [each for each in outcomes if not isinstance(each, str)]
    known = KnownHeaders.of(digests[usable], headers, outcome)
    unfit = misfits(headers)
    failed += [Skipped(entries[position].key, why) for position, why in unfit.items()]
    entries = [entry for position, entry in enumerate(entries) if position not in unfit]
    headers = [header for position, header in enumerate(headers) if position not in unfit]
    if previous.would_repeat(outcome):
        assert previous.index is not None, "checked by would_repeat"
        sheet = None
        if not previous.has_contact_sheet:
            pixels = previous.index.pixels
            sheet = _draw_sheet(record, source, entries, headers, pixels, threads)
        return Ingested(previous.index, previous.headers, sheet, is_unchanged=True)
    index, sheet = _build_index(
        record,
        source,
        entries,
        headers,
        skipped=[*skipped, *failed],
        ignored=listing.ignored,
        threads=(threads, reading),
        on_progress=on_progress,
    )
    return Ingested(index, known, sheet)


def _build_index(
    record: SourceRecord,
    source: Source,
    entries: list[Entry],
    headers: list[Header],
    *,
    skipped: list[Skipped],
    ignored: Mapping[str, int],
    threads: tuple[int, int],
    on_progress: OnProgress,
) -> tuple[DatasetIndex, ContactSheet | None]:
    """Decode a sample of the images whose headers are read, label all, and look for equal ones.

    Args:
        threads: that decode, and that read.
    """
    positions = sample_positions(headers)
    shown = _choose_shown(record, entries, positions)
    facts = PixelFacts.of(headers)
    sample = take_sample(
        source,
        entries,
        headers,
        positions,
        shown,
        facts,
        threads[0],
        lambda read, total: on_progress(read, total, "sample"),
    )
    skipped += [Skipped(entries[position].key, why) for position, why in sample.damaged.items()]
    usable = [position for position in range(len(entries)) if position not in sample.damaged]
    if not usable:
        raise ValueError(_no_images(record.uri, sorted(skipped), ignored))
    decoded = [entries[each] for each in usable]
    labels, class_names, kept = label_entries(record, decoded)
    usable = [usable[each] for each in kept]
    paths = [entries[each].key for each in usable]
    index = DatasetIndex(
        source=record,
        paths=Strings.of(paths),
        labels=labels,
        class_names=class_names,
        sizes=np.array([headers[each][:2] for each in usable], np.int32).reshape(-1, 2),
        places=np.array([_place(entries[each]) for each in usable], np.int64).reshape(-1, 4),
        checksums=np.array([headers[each].checksum for each in usable], np.int32),
        skipped=sorted(skipped),
        num_ignored=sum(ignored.values()),
        ignored_endings=dict(ignored),
        pixels=replace(
            sample.pixels, kinds=PixelFacts.of([headers[each] for each in usable]).kinds
        ),
        label_warnings=warnings_of_labels(record, decoded),
        duplicates={
            "equal": equal_files(
                source,
                [entries[each] for each in usable],
                threads[1],
                lambda read, total: on_progress(read, total, "comparison"),
            ),
            "similar": similar_images(usable, paths, sample.fingerprints),
        },
    )
    return index, _sheet_of(entries, shown, sample, sample.pixels)


def _draw_sheet(
    record: SourceRecord,
    source: Source,
    entries: list[Entry],
    headers: list[Header],
    pixels: PixelFacts,
    threads: int,
) -> ContactSheet | None:
    """Draw the contact sheet of an ingest that has ended, with the facts that it has found."""
    shown = _choose_shown(record, entries, sample_positions(headers))
    sample = take_sample(source, entries, headers, shown, shown, pixels, threads, lambda *_: None)
    return _sheet_of(entries, shown, sample, pixels)


def _sheet_of(
    entries: list[Entry], shown: list[int], sample: Sample, pixels: PixelFacts
) -> ContactSheet | None:
    """Return the sheet of the images that are shown; None if all of them are damaged."""
    drawn = [each for each in shown if each in sample.thumbnails]
    if not drawn:
        return None
    thumbnails = [sample.thumbnails[each] for each in drawn]
    return ContactSheet([entries[each].key for each in drawn], thumbnails, pixels)


def _choose_shown(record: SourceRecord, entries: list[Entry], positions: list[int]) -> list[int]:
    """Choose the images of a sample that the contact sheet shows."""
    return choose(positions, _labels_of_sample(record, [entries[each] for each in positions]))


def _labels_of_sample(record: SourceRecord, entries: list[Entry]) -> np.ndarray | None:
    """Return the labels of a sample's images; None if there are none, or not of all of them."""
    try:
        labels, _, kept = label_entries(record, entries)
    except ValueError:  # the sample lacks a class that is chosen
        return None
    return labels if len(kept) == len(entries) else None


def _digest(record: SourceRecord, listing: Listing, failed: list[Skipped]) -> str:
    """Return a digest of all that decides what an ingest finds, once the headers are read."""
    content = json.dumps([FORMAT, record.to_json(), listing.digest(), sorted(failed)])
    return hashlib.blake2b(content.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def _place(entry: Entry) -> tuple[int, int, int, int]:
    return entry.file, entry.offset, entry.length, entry.stamp


def _no_images(location: str, skipped: Sequence[Skipped], ignored: Mapping[str, int]) -> str:
    message = f"{location} holds no usable image"
    if skipped:
        message += f"; {len(skipped)} skipped, such as {skipped[0].path} ({skipped[0].reason})"
    if ignored:
        count = sum(ignored.values())
        files = "1 other file" if count == 1 else f"{count} other files"
        message += f"; {files} ignored ({describe_endings(ignored)})"
        if not skipped:  # else the reason is another one
            message += f"; expected files that end in {', '.join(sorted(EXTENSIONS))}"
        if not ignored.keys().isdisjoint(SOURCE_ENDINGS):
            message += ". Register an archive, list or table by its own path"
    return message
