"""Interface of an image source, and the registry of source classes."""

from __future__ import annotations

import hashlib
import math
import posixpath
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, BinaryIO, ClassVar, NamedTuple

from dasl_core.ignored import IgnoredFiles
from dasl_core.spec.locations import EVERY_FOLDER, ReadableFolders
from dasl_core.spec.source import Links, SourceOptions
from dasl_core.storage import Storage, check_location, open_storage
from dasl_core.text import cut, printable

# An entry takes about 300 bytes of memory while it is listed. ImageNet-21k has 14 million images.
MAX_ENTRIES = 20_000_000

DEFAULT_OPTIONS = SourceOptions()

OnListed = Callable[[int], None]
"""Called with the number of entries found so far."""


class Entry(NamedTuple):
    """An image of a source, not read yet.

    Attributes:
        key: unique name within the source, with forward slashes and the extension of the file, if any.
        length: stored size of the image in bytes; -1 if unknown.
        stamp: change detector: a hash of the file's mtime, ctime and permissions, or of the object's ETag.
        file: position in `Source.files` of the containing file; 0 where each image is a file.
        offset: start of the image in this file: a byte of an archive, or a row of a table.
        label: class named by the source, or None.
        split: split named by the source, or None.
        group: value of the column `group_column`, or None.
    """

    key: str
    length: int = -1
    stamp: int = 0
    file: int = 0
    offset: int = 0
    label: str | None = None
    split: str | None = None
    group: str | None = None


class Skipped(NamedTuple):
    """A file, folder or entry that is not part of the data set.

    Attributes:
        path: relative to the source, with forward slashes; bytes that are not UTF-8 are shown as ``\\xNN``.
        reason: a sentence for people.
    """

    path: str
    reason: str


@dataclass(frozen=True)
class Listing:
    """The entries of a source, before any is read.

    Attributes:
        entries: sorted by key.
        skipped: files, folders and entries that may not or cannot be read, sorted by path.
        ignored: files without an image extension.
        unused_columns: names of the columns that are not read.
        warnings: other facts about the source that people must know, as sentences without their period.
    """

    entries: list[Entry]
    skipped: list[Skipped]
    ignored: IgnoredFiles = field(default_factory=IgnoredFiles)
    unused_columns: Sequence[str] = ()
    warnings: Sequence[str] = ()

    def unused(self) -> list[str]:
        """Return sentences about the columns and files that are not read."""
        sentences = []
        if columns := ", ".join(self.unused_columns):
            sentences.append(f"Columns that are not used: {columns}.")
        if files := self.ignored.describe():
            files += self.ignored.advise()
            sentences.append(f"Ignored, as their endings are not those of images: {files}.")
        return sentences

    def digest(self) -> str:
        """Compute a digest that changes when an image is added, removed, changed or made readable."""
        said = "\n".join([*self.unused(), *self.warnings])
        state = hashlib.blake2b(f"{said}\n".encode(), digest_size=16)
        for skipped in self.skipped:
            state.update(f"{skipped.path}\0{skipped.reason}\n".encode())
        for entry in self.entries:
            state.update("\0".join(map(str, entry)).encode() + b"\n")
        return state.hexdigest()


@dataclass(frozen=True)
class SourceRecord:
    """Description of a source, stored in an index to reopen it.

    Attributes:
        kind: name of the source's class in `SOURCES`.
        uri: the folder, file, pattern or data set, with links resolved.
        root: the folder to which `files` and keys are relative.
    """

    kind: str
    uri: str
    root: str
    files: tuple[str, ...] = ()
    options: SourceOptions = DEFAULT_OPTIONS

    @property
    def source_class(self) -> type[Source]:
        return SOURCES[self.kind]

    @property
    def choice(self) -> tuple[str | None, ...]:
        """Kind and options that identify an entry's image together with its key and location; often empty.

        Other options only filter entries or locate labels.
        """
        names = self.source_class.deciding_options
        return (self.kind, *(getattr(self.options, name) for name in names)) if names else ()

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON-ready values."""
        return asdict(self) | {"options": self.options.model_dump(mode="json")}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> SourceRecord:
        """Restore what `to_json` returned; a ValueError if it is something else."""
        options = SourceOptions.model_validate(content["options"])
        record = cls(
            content["kind"], content["uri"], content["root"], tuple(content["files"]), options
        )
        if {type(value) for value in (record.uri, record.root, *record.files)} != {str}:
            raise ValueError("the names of its source must be strings")
        if record.kind not in SOURCES:
            raise ValueError(f"its source is of an unknown kind, {record.kind!r}")
        return record

    def open(self, allowed: ReadableFolders = EVERY_FOLDER) -> Source:
        """Open the source; a ValueError if it may not be read, or needs a package that is not installed."""
        return self.source_class(self, allowed)

    def storage(self, allowed: ReadableFolders, links: Links = "inside") -> Storage:
        """Open the storage of `root`; a ValueError if one of `files` may not be read."""
        for file in self.files:
            check_location(posixpath.join(self.root, file), allowed)
        return open_storage(self.root, links, allowed)


SOURCES: dict[str, type[Source]] = {}
"""The class of every kind of source."""


class Source(ABC):
    """A set of images, listed once and then opened in any order by several threads.

    Raises:
        ValueError: it may not be read, or needs a package that is not installed.
    """

    in_several_files: ClassVar[bool] = False
    """Whether several files, in a folder or matching a pattern, can form one source."""
    has_folders: ClassVar[bool] = False
    """Whether keys are paths whose first folders may be splits or classes."""
    each_image_is_a_file: ClassVar[bool] = False
    """Whether keys are paths of files rather than of members of `files`."""
    keys_are_inside: ClassVar[bool] = True
    """Whether all keys stay inside `SourceRecord.root`."""
    chooses_split: ClassVar[bool] = False
    """Whether only entries of the requested split are listed."""
    deciding_options: ClassVar[tuple[str, ...]] = ()
    """Options needed, beyond key and location, to identify an entry's image."""
    inflates: ClassVar[bool] = False
    """Whether reading the end of an image requires inflating all of it."""

    files: Sequence[str] = ()
    """Files that contain images, relative to `SourceRecord.root`; empty where each image is a file."""

    def __init_subclass__(cls, kind: str | None = None) -> None:
        """Register the class of a kind of source."""
        if kind is not None:
            SOURCES[kind] = cls

    @abstractmethod
    def __init__(self, record: SourceRecord, allowed: ReadableFolders) -> None: ...

    @classmethod
    def is_at(cls, location: str) -> bool:
        """Whether a folder or URI is of this kind, if its name's ending does not tell."""
        return False

    @abstractmethod
    def list_entries(self, on_listed: OnListed) -> Listing:
        """List the entries.

        Raises:
            ValueError: it has no source of this kind; the message is a sentence.
            OSError: it cannot be read.
        """

    @abstractmethod
    def open(self, entry: Entry) -> BinaryIO:
        """Open an image for reading; seekable. Only `key`, `file`, `offset` and `length` matter.

        Raises:
            ValueError: it may not be read, or is damaged; the message is the reason.
            OSError: it cannot be read.
        """

    def open_header(self, entry: Entry) -> BinaryIO:
        """Open an image to read only its header, without unpacking more than needed; raises as `open`."""
        return self.open(entry)


def check_count(name: str, count: int) -> None:
    """Raise a ValueError if a file claims to have more than `MAX_ENTRIES` images, before they are listed."""
    if count > MAX_ENTRIES:
        raise ValueError(
            f"{name} has {count:,} rows, more than {MAX_ENTRIES:,}; divide it into several data sets"
        )


def class_name(value: object, names: Sequence[str]) -> str | None:
    """Return the class name of a table's label: the name with this number, or the value as text; None if it is missing.

    Raises:
        ValueError: it is a list or a record.
    """
    if isinstance(value, list | dict):
        raise ValueError(f"{cut(str(value))} is no label; name another column, or use --no-labels")
    if isinstance(value, float):  # integers of which some are missing, as pandas writes them
        value = None if math.isnan(value) else int(value) if value.is_integer() else value
    if isinstance(value, int) and names and -1 <= value < len(names):
        return names[value] if value >= 0 else None  # Hugging Face writes -1 for an unknown label
    # No database stores null characters.
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return None if value is None else text.replace("\0", "")


class Lister:
    """Collects the entries of a source, without skipped files that name another split than the requested one."""

    def __init__(self, on_listed: OnListed, split: str | None = None) -> None:
        self._on_listed, self._split = on_listed, split
        self.entries: list[Entry] = []
        self._skipped: list[Skipped] = []
        self.ignored = IgnoredFiles()
        self.columns: set[str] = set()
        """Names of all columns."""
        self.used_columns: set[str | None] = set()
        self.warnings: list[str] = []

    def add(self, entry: Entry) -> None:
        """List an image."""
        self.entries.append(entry)
        self._on_listed(len(self.entries))

    def skip(self, path: str, reason: str, split: str | None = None) -> None:
        """List what is not part of the data set."""
        if self._split is None or split in (None, self._split):
            self._skipped.append(Skipped(printable(path), reason))

    def choose_columns(
        self, table: str, columns: Sequence[str], image: str, options: SourceOptions
    ) -> tuple[str | None, str | None]:
        """Return the columns of labels and groups of a table, and note those that are not used.

        Raises:
            ValueError: it has no such column; the message begins with `table`.
        """
        label = options.label_column or ("label" if "label" in columns else None)
        label, group = label if options.labels != "none" else None, options.group_column
        for column in (label, group):
            if column not in (None, *columns):
                names = ", ".join(columns)
                raise ValueError(f"{table} has no column {column!r}; its columns are {names}")
        self.columns.update(columns)
        self.used_columns |= {image, label, group}
        return label, group

    def listing(self) -> Listing:
        """Return everything that was listed, sorted."""
        entries = sorted(self.entries, key=lambda entry: entry.key)
        unused = sorted(map(printable, self.columns.difference(self.used_columns)))
        return Listing(entries, sorted(self._skipped), self.ignored, unused, self.warnings)
