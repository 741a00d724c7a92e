"""The index of a data set: the result of ingest, one file that training maps into memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Self

import numpy as np

from dasl_core.data.array_file import damage_as, read_arrays, write_arrays
from dasl_core.data.decode import SCALES, decode
from dasl_core.data.decode.reasons import CHANGED, one_sentence
from dasl_core.data.headers import identify
from dasl_core.data.opening import open_unchanged
from dasl_core.data.pixel_facts import PixelFacts
from dasl_core.data.sources import Entry, Skipped, Source, SourceRecord
from dasl_core.data.strings import Strings
from dasl_core.spec import DatasetFacts
from dasl_core.spec.fields import PixelType
from dasl_core.spec.locations import EVERY_FOLDER, ReadableFolders
from dasl_core.spec.resolve.pixels import conversion
from dasl_core.storage import is_inside

# Increased when older indexes can no longer be read.
_FORMAT = 1
# Fields that are JSON as they are.
_PLAIN_FIELDS = ("class_names", "duplicates", "unused", "warnings")
# Columns of `DatasetIndex.locations`.
FILE, OFFSET, LENGTH, STAMP = range(4)


@dataclass(frozen=True, eq=False)
class DatasetIndex:
    """The usable images of a source, in a fixed order."""

    on_disk: ClassVar[bool] = True
    """Whether the images are files, which can be missing, and whose pixels are cached."""

    source: SourceRecord
    """Where the images are."""
    paths: Sequence[str]
    """Keys of the images in the source, with forward slashes, sorted."""
    labels: np.ndarray | None
    """(N,) int32, an index into `class_names` per path; None when the data set has no labels."""
    class_names: list[str]
    """Sorted; empty when the data set has no labels."""
    sizes: np.ndarray
    """(N, 2) int32: width and height in pixels, upright."""
    locations: np.ndarray
    """(N, 4) int64: file, offset, length and stamp of each image, as in `Entry`."""
    skipped: list[Skipped]
    checksums: np.ndarray
    """(N,) int32, to detect changed images."""
    pixels: PixelFacts = field(default_factory=PixelFacts)
    """Type, bands and statistics of the pixels."""
    unused: list[str] = field(default_factory=list)
    """Sentences about labels, columns and files that are not used, and why there are no labels."""
    warnings: list[str] = field(default_factory=list)
    """Warnings about the source, its values, and images and labels that are doubtful, as sentences without their period."""
    duplicates: dict[str, Any] = field(default_factory=dict)
    """Report of equal and similar images that ingest found; see `dasl_core.data.duplicates`."""
    duplicate_of: np.ndarray | None = None
    """(N,) int32, the position of the first of an image's near-duplicates, or its own; None: no image has one."""
    groups: Sequence[str] | None = None
    """Value of the source's `group_column` for each image, "" for none; None without such a column."""
    allowed: ReadableFolders = EVERY_FOLDER
    """Folders that may be read."""

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def location(self) -> str:
        """The folder, file, pattern or URI of the images."""
        return self.source.uri

    @property
    def root(self) -> Path:
        """The folder to which paths, or the files of the source, are relative."""
        return Path(self.source.root)

    @cached_property
    def opened_source(self) -> Source:
        """The source, opened; a ValueError if it may not be read, or needs a package that is not installed."""
        return self.source.open(self.allowed)

    def entry(self, index: int) -> Entry:
        """Return where an image is."""
        file, offset, length, stamp = map(int, self.locations[index])
        return Entry(self.paths[index], length, stamp, file, offset)

    def decode(
        self,
        index: int,
        channels: int,
        at_least: tuple[int, int] | None = None,
        on_digest: Callable[[int, bytes], None] | None = None,
    ) -> np.ndarray:
        """Return the pixels (height, width, channels) of an image, of the type `pixels.dtype`.

        Args:
            at_least: height and width below which the decoder must not reduce the image; None: no reduction.
            on_digest: called with the position and the SHA-256 of the file.

        Raises:
            ValueError: it cannot be read; the message is the reason.
        """
        checksum = int(self.checksums[index])
        with open_unchanged(self.opened_source, self.entry(index), checksum) as file:
            if on_digest is not None:
                on_digest(index, _sha256(file))
            pixels = decode(file, self.paths[index], channels, self.pixels.dtype, at_least)
        width, height = map(int, self.sizes[index])
        scaled = ((-(-height // scale), -(-width // scale)) for scale in SCALES)
        if pixels.shape[:2] not in scaled:
            raise ValueError(CHANGED)
        return pixels

    def file_digest(self, index: int) -> bytes:
        """Return the SHA-256 of an image's file; a ValueError with the reason if it cannot be read."""
        checksum = int(self.checksums[index])
        with open_unchanged(self.opened_source, self.entry(index), checksum) as file:
            return _sha256(file)

    def as_type(self, dtype: PixelType) -> Self:
        """Return the index of the same images, whose values are read as another type if they are converted to it."""
        converted = conversion(self.pixels.dtype, dtype) != 1 and self.on_disk
        return replace(self, pixels=replace(self.pixels, dtype=dtype)) if converted else self

    def facts(self) -> DatasetFacts:
        """Return the facts for resolving a job's "auto" values."""
        return DatasetFacts(
            num_images=len(self.paths),
            num_classes=len(self.class_names) if self.labels is not None else None,
            median_size=int(np.median(self.sizes.min(axis=1))),
            group_column=None if self.groups is None else self.source.options.group_column,
            **self.pixels.dataset_facts(),
        )

    def report(self, limit: int = 1000) -> dict[str, Any]:
        """Return a report for people, JSON-ready, with at most `limit` skipped files and classes."""
        return {
            "source": self.source.kind,
            "num_images": len(self.paths),
            "num_skipped": len(self.skipped),
            "class_names": self.class_names[:limit],
            "class_images": np.bincount([] if self.labels is None else self.labels)[
                :limit
            ].tolist(),
            "skipped": [
                {"path": skipped.path, "reason": skipped.reason} for skipped in self.skipped[:limit]
            ],
            "pixels": asdict(self.pixels) | {"kinds": dict(self.pixels.kinds)},
            "duplicates": self.duplicates,
            "unused": self.unused,
            "warnings": self.warnings,
        }

    def changes_since(self, before: DatasetIndex) -> dict[str, int]:
        """Count the images that were added, removed, changed, unchanged and relabeled since another version."""
        names = {*before.paths}
        common = sum(path in names for path in self.paths)
        identities = {digest.tobytes() for digest in before._identities()}
        unchanged = sum(digest.tobytes() in identities for digest in self._identities())
        classes = before._classes()
        relabeled = sum(classes.get(path, name) != name for path, name in self._classes().items())
        return {
            "added": len(self) - common,
            "removed": len(before) - common,
            "changed": common - unchanged,
            "unchanged": unchanged,
            "relabeled": relabeled,
        }

    def _classes(self) -> dict[str, str | None]:
        """Return the class of each image; None without labels."""
        if self.labels is None:
            return dict.fromkeys(self.paths)
        names = (self.class_names[label] for label in self.labels.tolist())
        return dict(zip(self.paths, names, strict=True))

    def _identities(self) -> np.ndarray:
        return identify([self.entry(number) for number in range(len(self))], self.source.files)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index, atomically; the same index gives the same bytes."""
        paths = Strings.pack(self.paths)
        arrays = {
            "paths": paths.data,
            "ends": paths.ends,
            "sizes": self.sizes,
            "places": self.locations,
            "checksums": self.checksums,
        }
        if self.labels is not None:
            arrays["labels"] = self.labels
        if self.duplicate_of is not None:
            arrays["duplicate_of"] = self.duplicate_of
        if self.groups is not None:
            groups = Strings.pack(self.groups)
            arrays |= {"groups": groups.data, "group_ends": groups.ends}
        about = {name: getattr(self, name) for name in _PLAIN_FIELDS} | {
            "format": _FORMAT,
            "source": self.source.to_json(),
            "skipped": self.skipped,
            "pixels": asdict(self.pixels),
        }
        write_arrays(Path(path), arrays, about)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> DatasetIndex:
        """Read a file that `save` wrote; its arrays are mapped into memory.

        Raises:
            ValueError: the file is not an index, is damaged, or names an image outside its root.
            OSError: the file does not exist, or cannot be read.
        """
        with damage_as(f"{path} is not a data set index"):
            index = cls._read(Path(path))
            index._check()
        return index

    @classmethod
    def _read(cls, path: Path) -> DatasetIndex:
        arrays, about = read_arrays(path, _FORMAT)
        return cls(
            source=SourceRecord.from_json(about["source"]),
            paths=Strings(arrays["paths"], arrays["ends"]),
            labels=arrays.get("labels"),
            sizes=arrays["sizes"],
            locations=arrays["places"],
            skipped=[Skipped(*entry) for entry in about["skipped"]],
            checksums=arrays["checksums"],
            pixels=PixelFacts.from_json(about["pixels"]),
            duplicate_of=arrays.get("duplicate_of"),
            groups=Strings(arrays["groups"], arrays["group_ends"]) if "groups" in arrays else None,
            **{name: about[name] for name in _PLAIN_FIELDS},
        )

    def _check(self) -> None:
        texts = {name: getattr(self, name) for name in ("class_names", "unused", "warnings")}
        for name, values in (texts | {"skipped": chain(*self.skipped)}).items():
            if not all(isinstance(value, str) for value in values):
                raise ValueError(f"its {name} must be strings")
        count = len(self.paths)
        for name, strings in (("paths", self.paths), ("groups", self.groups)):
            if isinstance(strings, Strings) and not strings.is_whole():
                raise ValueError(f"its {name} are damaged")
        labels = (count,) if self.labels is None else self.labels.shape
        groups = count if self.groups is None else len(self.groups)
        shapes = (self.sizes.shape, self.locations.shape, self.checksums.shape, labels, groups)
        if shapes != ((count, 2), (count, 4), (count,), (count,), count):
            raise ValueError("its lists differ in length")
        if (first := self.duplicate_of) is not None:
            own = np.arange(count)
            is_valid = first.shape == (count,) and (first >= 0).all() and (first <= own).all()
            if not is_valid or (first[first] != first).any():
                raise ValueError("its duplicates must name the first image of their group")
        found = self.duplicates
        if not isinstance(found, dict) or not all(isinstance(x, dict) for x in found.values()):
            raise ValueError("its duplicates must be reports")
        if self.labels is not None:
            classes = len(self.class_names)
            if count and not (self.labels.min() >= 0 and self.labels.max() < classes):
                raise ValueError(f"its labels must be numbers from 0 to {classes - 1}")
        if count and self.sizes.min() < 1:
            raise ValueError("its sizes must be at least 1")
        # Such sources check each path whenever they open a file.
        if not self.source.source_class.keys_are_inside:
            return
        assert isinstance(self.paths, Strings), "it was read from a file"
        text = self.paths.data.tobytes()
        if b".." in text or b"//" in text or text.startswith(b"/"):
            outside = next((name for name in self.paths if not is_inside(name)), None)
            if outside is not None:
                raise ValueError(f"it names an image outside its folder: {outside}")


def _sha256(file: BinaryIO) -> bytes:
    """Compute the SHA-256 of an image's file, which stays open, at its start."""
    with one_sentence():
        digest = hashlib.file_digest(file, "sha256").digest()  # type: ignore[arg-type]
        file.seek(0)
    return digest
