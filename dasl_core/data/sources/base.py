"""What a source of images is: it lists entries, and opens one of them; and the registry of its kinds."""

from __future__ import annotations

import hashlib
import os
import posixpath
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, BinaryIO, ClassVar, NamedTuple, TypeVar

from dasl_core.data.decode import EXTENSIONS
from dasl_core.data.sources.storage import Storage, check_location, open_storage, printable
from dasl_core.spec.locations import EVERY_FOLDER, ReadableFolders
from dasl_core.spec.source import Links, SourceOptions

# An entry takes about 300 bytes of memory while it is listed. ImageNet-21k has 14 million images.
MAX_ENTRIES = 20_000_000

DEFAULT_OPTIONS = SourceOptions()

_MOST_ENDINGS = 50
_LONGEST_ENDING = 20
OTHER_ENDINGS = "other endings"
"""Stands for the endings beyond those that are counted one by one."""

OnListed = Callable[[int], None]
"""Called with the number of entries that were found so far."""


class Entry(NamedTuple):
    """An image of a source, not read yet.

    Attributes:
        key: unique name within the source, with forward slashes; it ends in the extension of the file, if there
            is one.
        length: bytes of the image as it is stored; -1 where the source does not know them.
        stamp: changes when the image does: a hash of the file's times of modification and change (mtime, ctime) and
            permissions, or in an object store of its ETag.
        file: position in `Source.files` of the file that contains the image; 0 where each image is a file.
        offset: where the image begins in this file: a byte of an archive, or a row of a table.
        label: class, if the source names one.
        split: if the source names one.
    """

    key: str
    length: int = -1
    stamp: int = 0
    file: int = 0
    offset: int = 0
    label: str | None = None
    split: str | None = None


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
    """The entries of a source, of which none has been read.

    Attributes:
        entries: sorted by key.
        skipped: files, folders and entries that may not or cannot be read, sorted by path.
        ignored: number of files that are not named like images, by ending.
    """

    entries: list[Entry]
    skipped: list[Skipped]
    ignored: Mapping[str, int] = field(default_factory=dict)

    @property
    def num_ignored(self) -> int:
        """Files that are not named like images."""
        return sum(self.ignored.values())

    def digest(self) -> str:
        """Return a digest that changes when an image is added, removed, changed or made readable."""
        state = hashlib.blake2b(f"{self.num_ignored}\n".encode(), digest_size=16)
        for skipped in self.skipped:
            state.update(f"{skipped.path}\0{skipped.reason}\n".encode())
        for entry in self.entries:
            state.update("\0".join(map(str, entry)).encode() + b"\n")
        return state.hexdigest()


@dataclass(frozen=True)
class SourceRecord:
    """What must be known to open a source again; an index stores it.

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
        """The class of the source."""
        return SOURCES[self.kind]

    @property
    def choice(self) -> tuple[str | None, ...]:
        """The kind and options, where they decide which image an entry is; empty where its key and place suffice.

        Others only leave entries out, or say where labels are.
        """
        names = self.source_class.deciding_options
        return (self.kind, *(getattr(self.options, name) for name in names)) if names else ()

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON-ready values."""
        return asdict(self) | {"options": self.options.model_dump(mode="json")}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> SourceRecord:
        """Restore what `to_json` returned.

        Raises:
            ValueError: it is something else.
        """
        options = SourceOptions.model_validate(content["options"])
        record = cls(
            content["kind"], content["uri"], content["root"], tuple(content["files"]), options
        )
        if {type(each) for each in (record.uri, record.root, *record.files)} != {str}:
            raise ValueError("the names of its source must be strings")
        if record.kind not in SOURCES:
            raise ValueError(f"its source is of an unknown kind, {record.kind!r}")
        return record

    def open(self, allowed: ReadableFolders = EVERY_FOLDER) -> Source:
        """Open the source.

        Raises:
            ValueError: it may not be read, or needs a package that is not installed.
        """
        return self.source_class(self, allowed)

    def storage(self, allowed: ReadableFolders, links: Links = "inside") -> Storage:
        """Open the storage of `root`.

        Raises:
            ValueError: one of `files` may not be read.
        """
        for file in self.files:
            check_location(posixpath.join(self.root, file), allowed)
        return open_storage(self.root, links, allowed)


class Source(ABC):
    """Images in some place, listed once and then opened in any order, by several threads.

    Raises:
        ValueError: it may not be read, or needs a package that is not installed.
    """

    in_several_files: ClassVar[bool] = False
    """Whether several files of this kind can be one source: those of a folder, or of a pattern."""
    has_folders: ClassVar[bool] = False
    """Whether keys are paths, whose first folders may be splits or classes."""
    each_image_is_a_file: ClassVar[bool] = False
    """Whether keys are paths of files, and not of members of `files`."""
    keys_are_inside: ClassVar[bool] = True
    """Whether no key leads out of `SourceRecord.root`."""
    chooses_split: ClassVar[bool] = False
    """Whether only entries of the chosen split are listed."""
    deciding_options: ClassVar[tuple[str, ...]] = ()
    """Options without which the key and the place of an entry do not tell which image it is."""
    inflates: ClassVar[bool] = False
    """Whether reading the end of an image takes inflating all of it."""

    files: Sequence[str] = ()
    """Files that contain images, relative to `SourceRecord.root`; empty where each image is a file."""

    @abstractmethod
    def __init__(self, record: SourceRecord, allowed: ReadableFolders) -> None: ...

    @classmethod
    def is_at(cls, location: str) -> bool:
        """Whether a folder or a URI is of this kind, which no ending of its name tells."""
        return False

    @abstractmethod
    def list_entries(self, on_listed: OnListed) -> Listing:
        """List the entries.

        Raises:
            ValueError: there is nothing of this kind; the message is a sentence.
            OSError: the place cannot be read.
        """

    @abstractmethod
    def open(self, entry: Entry) -> BinaryIO:
        """Open an image for reading; seekable. Only `key`, `file`, `offset` and `length` matter.

        Raises:
            ValueError: it may not be read, or is damaged; the message is the reason.
            OSError: it cannot be read.
        """

    def open_header(self, entry: Entry) -> BinaryIO:
        """Open an image of which only the header is read: no more of it should be read or unpacked. Else as `open`."""
        return self.open(entry)


SOURCES: dict[str, type[Source]] = {}
"""The class of every kind of source."""

Registered = TypeVar("Registered", bound=type[Source])


def register(kind: str) -> Callable[[Registered], Registered]:
    """Register the class of a kind of source."""

    def add(source: Registered) -> Registered:
        SOURCES[kind] = source
        return source

    return add


def check_count(name: str, count: int) -> None:
    """Check the number of images that a file claims to have, before they are listed.

    Raises:
        ValueError: there are more than `MAX_ENTRIES`.
    """
    if count > MAX_ENTRIES:
        raise ValueError(
            f"{name} has {count:,} rows, more than {MAX_ENTRIES:,}; divide it into several data sets"
        )


def class_name(value: object, names: Sequence[str]) -> str | None:
    """Return the name of a label of a table: that of the class with this number, else the value as text."""
    if isinstance(value, int) and 0 <= value < len(names):
        return names[value]
    # No database stores null characters.
    return None if value is None else str(value).replace("\0", "")


def one_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type if it has none."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


class IgnoredFiles:
    """Counts of files that are not named like images, by their lowercase ending; "" for those without one."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, path: str) -> None:
        """Count a file."""
        ending = printable(os.path.splitext(path)[1].lower())
        # Names may end in hashes or dates: memory stays bounded.
        is_usual = ending in self.counts or len(self.counts) < _MOST_ENDINGS
        self.counts[ending if is_usual and len(ending) <= _LONGEST_ENDING else OTHER_ENDINGS] += 1


def is_image_name(path: str) -> bool:
    """Whether a file is named like an image; its content decides when it is read."""
    return os.path.splitext(path)[1][1:].lower() in EXTENSIONS
