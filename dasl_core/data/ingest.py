"""Ingest: list the images of a source, read their headers, and decode a sample of them.

A broken file never fails an ingest or a job: it is skipped and listed with the reason.
"""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from dasl_core.data.classes import choose_split, label_entries, why_unlabeled
from dasl_core.data.contact_sheet import ContactSheet, choose
from dasl_core.data.decode import Header, is_transient
from dasl_core.data.decode.foreign import HEAD, describe_foreign
from dasl_core.data.doubts import axis_doubts, doubts
from dasl_core.data.duplicates import describe, equal_files, find_duplicates, groups_of
from dasl_core.data.headers import HeaderTable, OnHeaders, read_headers
from dasl_core.data.index import DatasetIndex
from dasl_core.data.pixel_facts import PixelFacts, header_warnings, misfits
from dasl_core.data.sample import sample_positions, take_sample
from dasl_core.data.sources import Entry, Listing, Skipped, Source, SourceRecord, find_source
from dasl_core.data.strings import Strings
from dasl_core.machine import usable_cores
from dasl_core.spec.locations import EVERY_FOLDER, ReadableFolders
from dasl_core.spec.resolve.pixels import automatic_window
from dasl_core.spec.source import COMPRESSED_ENDINGS, SOURCE_ENDINGS, SourceOptions, unread_options
from dasl_core.vocabulary import IMAGE_EXTENSIONS, IngestPhase

# Threads that wait for an object store need no processor time.
_REMOTE_THREADS = 32
# Increased when an ingest of the same files gives another index, so that a refresh makes a new version.
FORMAT = 3
# Limit on the length of a group's name in `group_column`.
LONGEST_GROUP = 1000

OnProgress = Callable[[int, int, IngestPhase], None]
"""Called with how many images are read in a phase, and of how many: 0 of those found so far; those whose header is known
of all; those decoded of the sample; those read of the files that are compared."""


@dataclass(frozen=True)
class Previous:
    """Results of earlier ingests of a source.

    Attributes:
        headers: headers that need not be read again.
        index: index of the last complete ingest, which set `headers.outcome`.
        has_contact_sheet: False if the last contact sheet is lost and must be drawn again, from a new sample.
    """

    headers: HeaderTable = field(default_factory=HeaderTable.none)
    index: DatasetIndex | None = None
    has_contact_sheet: bool = True

    def would_repeat(self, outcome: str) -> bool:
        """Whether an ingest with this outcome would give the same index.

        False if a sampled image failed to decode for a transient reason.
        """
        if self.index is None or self.headers.outcome != outcome:
            return False
        return not any(is_transient(skipped.reason) for skipped in self.index.skipped)


@dataclass(frozen=True)
class Ingested:
    """Result of an ingest.

    Attributes:
        headers: all headers, for the next ingest.
        contact_sheet: None if the existing one is current, or none of its images can be decoded.
        is_unchanged: the index is that of the previous ingest.
    """

    index: DatasetIndex
    headers: HeaderTable
    contact_sheet: ContactSheet | None
    is_unchanged: bool = False


def ingest_folder(
    location: str | os.PathLike[str],
    workers: int | None = None,
    *,
    options: SourceOptions | None = None,
    allowed: ReadableFolders = EVERY_FOLDER,
    on_progress: OnProgress = lambda *_: None,
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
    on_progress: OnProgress = lambda *_: None,
    previous: Previous | None = None,
    on_headers: OnHeaders = lambda headers: None,
) -> Ingested:
    """Find, check and label the images of a folder, an archive, a list or a table.

    * The header of every file with an image extension is read, and a sample is decoded (`sample`): all of a small data
      set. A file is skipped, with a reason, when that fails or it may not be read.
    * An image is also skipped if its bands, or kind of values, are not those of most (`misfits`), or if the values of its
      kind do not fit in the window of most images (`sample`).
    * Labels are those of the source, or the names of folders (`label_entries`); none are needed.
    * The order is that of the sorted keys, the same on every machine.

    Args:
        location: as of `find_source`: a path, pattern or URI.
        workers: number of threads; None: one per usable core. Decoding is limited to a quarter of the free memory.
        options: which images to use, and where their labels are.
        allowed: folders that may be read; they must contain the location and everything in it.
        on_progress: called in this thread after each file that is found or read.
        previous: results of earlier ingests of the same location and options. Headers of images with a stored key,
            location, length and stamp (`Entry`) are not read again; the result is that of a first ingest.
        on_headers: called in this thread with new headers, to save them.

    Raises:
        ValueError: the location is missing, not readable, not allowed, holds no usable image, or is divided into
            splits ("train", "test", ...) of which none is requested: each is a data set of its own.
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
    on_progress: OnProgress = lambda *_: None,
) -> tuple[Source, Listing]:
    """Open a source, and list its entries for `ingest_listing`; a ValueError if it cannot or may not be read."""
    if problems := unread_options(record.kind, record.root, record.options):
        raise ValueError(f"{record.uri}: {'; '.join(map(str, problems))}")
    try:
        source = record.open(allowed)
        listing = source.list_entries(lambda count: on_progress(0, count, "listing"))
    except OSError as error:
        raise ValueError(f"{record.uri} cannot be read: {error.strerror or error}") from error
    except ValueError:
        _refuse_foreign(record, allowed)
        raise
    if not listing.entries:
        _refuse_foreign(record, allowed)
    return source, listing


def _refuse_foreign(record: SourceRecord, allowed: ReadableFolders) -> None:
    """Raise a ValueError if the first file of a source is something else than its kind."""
    head = b""
    with suppress(IndexError, OSError, ValueError):
        head = record.storage(allowed, record.options.links).read(record.files[0], 0, HEAD)
    if (what := describe_foreign(head)) and record.kind not in what.lower().split():
        raise ValueError(f"{record.uri} is {what}")


def ingest_listing(
    record: SourceRecord,
    source: Source,
    listing: Listing,
    workers: int | None = None,
    *,
    on_progress: OnProgress = lambda *_: None,
    previous: Previous | None = None,
    on_headers: OnHeaders = lambda headers: None,
) -> Ingested:
    """Check and label the images of a listing, as `ingest` does, and with its errors."""
    previous = previous or Previous()
    threads = workers or usable_cores()
    reading = threads if "://" not in record.root else max(threads, _REMOTE_THREADS)
    selected, skipped = choose_split(record, listing)
    digests, outcomes = read_headers(
        source,
        selected,
        reading,
        previous.headers,
        lambda read, total: on_progress(read, total, "headers"),
        on_headers,
    )
    failed = [
        Skipped(entry.key, outcome)
        for entry, outcome in zip(selected, outcomes, strict=True)
        if isinstance(outcome, str)
    ]
    outcome = _digest(record, listing, failed)
    unchanged = previous.index if previous.would_repeat(outcome) else None
    if unchanged is not None and previous.has_contact_sheet:
        return Ingested(unchanged, previous.headers, None, is_unchanged=True)
    usable = [position for position, outcome in enumerate(outcomes) if not isinstance(outcome, str)]
    entries = [selected[position] for position in usable]
    headers = [outcome for outcome in outcomes if not isinstance(outcome, str)]
    known = HeaderTable.build(digests[usable], headers, outcome)
    unfit = misfits(headers)
    failed += [Skipped(entries[position].key, why) for position, why in unfit.items()]
    entries = [entry for position, entry in enumerate(entries) if position not in unfit]
    headers = [header for position, header in enumerate(headers) if position not in unfit]
    index, sheet = _build_index(
        record,
        source,
        entries,
        headers,
        skipped=[*skipped, *failed],
        listing=listing,
        threads=(threads, reading),
        on_progress=on_progress,
    )
    if unchanged is not None:
        return Ingested(unchanged, previous.headers, sheet, is_unchanged=True)
    return Ingested(index, known, sheet)


def _build_index(
    record: SourceRecord,
    source: Source,
    entries: list[Entry],
    headers: list[Header],
    *,
    skipped: list[Skipped],
    listing: Listing,
    threads: tuple[int, int],
    on_progress: OnProgress,
) -> tuple[DatasetIndex, ContactSheet | None]:
    """Decode a sample, label all images, and find equal ones and near-duplicates.

    Args:
        threads: numbers of threads that decode and that read.
    """
    positions = sample_positions(headers)
    thumbnail_positions = _choose_thumbnails(record, entries, positions)
    facts = PixelFacts.from_headers(headers)
    sample = take_sample(
        source,
        entries,
        headers,
        positions,
        thumbnail_positions,
        facts,
        threads[0],
        lambda read, total: on_progress(read, total, "sample"),
    )
    if sample.unfit:
        fitting = [position for position in range(len(entries)) if position not in sample.unfit]
        unfit = [Skipped(entries[position].key, why) for position, why in sample.unfit.items()]
        return _build_index(
            record,
            source,
            [entries[position] for position in fitting],
            [headers[position] for position in fitting],
            skipped=[*skipped, *unfit],
            listing=listing,
            threads=threads,
            on_progress=on_progress,
        )
    skipped += [Skipped(entries[position].key, why) for position, why in sample.damaged.items()]
    usable = [position for position in range(len(entries)) if position not in sample.damaged]
    if not usable:
        raise ValueError(_no_images(record.uri, sorted(skipped), listing))
    decoded = [entries[position] for position in usable]
    labels, class_names, labeled = label_entries(record, decoded)
    usable = [usable[position] for position in labeled]
    images = [entries[position] for position in usable]
    used = [headers[position] for position in usable]
    paths = [image.key for image in images]
    locations = [(image.file, image.offset, image.length, image.stamp) for image in images]
    equal, read = equal_files(
        source, images, threads[1], lambda read, total: on_progress(read, total, "comparison")
    )
    compared = {
        number: sample.compared[position]
        for number, position in enumerate(usable)
        if position in sample.compared
    }
    # Of the values that occur: in dim images of 8 bits, the differences are small, too.
    dtype = "uint16" if sample.pixels.dtype == "uint8" else sample.pixels.dtype
    low, high = automatic_window(dtype, sample.pixels.quantiles)
    of_used = PixelFacts.from_headers(used)
    duplicate_of, checked = find_duplicates(len(images), equal, compared, high - low)
    index = DatasetIndex(
        source=record,
        paths=Strings.pack(paths),
        labels=labels,
        class_names=class_names,
        sizes=np.array([header[:2] for header in used], np.int32).reshape(-1, 2),
        locations=np.array(locations, np.int64).reshape(-1, 4),
        checksums=np.array([header.checksum for header in used], np.int32),
        skipped=sorted(skipped),
        pixels=replace(sample.pixels, kinds=of_used.kinds, has_dicom=of_used.has_dicom),
        unused=[
            *([f"No labels: {why_unlabeled(record, decoded, listing)}."] if labels is None else []),
            *listing.unused(),
        ],
        warnings=[
            *header_warnings(used),
            *axis_doubts(paths, used),
            *listing.warnings,
            *sample.warnings,
            *doubts(paths, labels, class_names, equal),
        ],
        duplicates={
            "equal": describe(equal, paths, read),
            "similar": describe(groups_of(duplicate_of), paths, checked),
        },
        duplicate_of=duplicate_of,
        groups=_groups(record, images),
    )
    drawn = [position for position in thumbnail_positions if position in sample.thumbnails]
    thumbnails = [sample.thumbnails[position] for position in drawn]
    keys = [entries[position].key for position in drawn]
    return index, ContactSheet(keys, thumbnails, sample.pixels) if drawn else None


def _groups(record: SourceRecord, images: Sequence[Entry]) -> Strings | None:
    """Return the values of the column `group_column`, "" for none; None without such a column."""
    if record.options.group_column is None:
        return None
    longest = max(images, key=lambda image: len(image.group or ""))
    if len(longest.group or "") > LONGEST_GROUP:
        raise ValueError(
            f"the column {record.options.group_column!r} has a value of {len(longest.group or '')} characters "
            f"({longest.key}), and a group's name at most {LONGEST_GROUP}"
        )
    return Strings.pack([image.group or "" for image in images])


def _choose_thumbnails(
    record: SourceRecord, entries: list[Entry], positions: list[int]
) -> list[int]:
    """Choose the sampled images for the contact sheet, by their labels if all have one."""
    try:
        labels, _, labeled = label_entries(record, [entries[position] for position in positions])
    except ValueError:  # the sample lacks a requested class
        return choose(positions, None)
    return choose(positions, labels if len(labeled) == len(positions) else None)


def _digest(record: SourceRecord, listing: Listing, failed: list[Skipped]) -> str:
    """Compute a digest of everything that determines the result of an ingest after its headers."""
    content = json.dumps([FORMAT, record.to_json(), listing.digest(), sorted(failed)])
    return hashlib.blake2b(content.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def _no_images(location: str, skipped: Sequence[Skipped], listing: Listing) -> str:
    message = f"{location} holds no usable image"
    if skipped:
        message += f"; {len(skipped)} skipped, such as {skipped[0].path} ({skipped[0].reason})"
    endings = listing.ignored.endings
    if endings:
        count = endings.total()
        files = "1 other file" if count == 1 else f"{count} other files"
        message += f"; {files} ignored: {listing.ignored.describe()}"
    if not skipped:
        message += f"; expected files that end in {', '.join(sorted(IMAGE_EXTENSIONS))}"
    if endings:
        message += listing.ignored.advise()
        if ".arrow" in endings:
            message += ". Of a Hugging Face cache, register what save_to_disk or to_parquet writes, or hf://OWNER/NAME"
        elif not endings.keys().isdisjoint((*SOURCE_ENDINGS, *COMPRESSED_ENDINGS)):
            message += ". Register an archive, list or table by its own path, and unpack one inside another first"
    return message
