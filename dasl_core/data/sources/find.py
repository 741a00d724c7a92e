"""Detection of a location's kind of source."""

import os
import posixpath
import re
from fnmatch import fnmatch
from itertools import product
from pathlib import Path

from dasl_core.data.sources.base import DEFAULT_OPTIONS, SOURCES, SourceRecord
from dasl_core.spec.locations import EVERY_FOLDER, ReadableFolders, local_path
from dasl_core.spec.source import (
    COMPRESSED,
    COMPRESSED_ENDINGS,
    SOURCE_KINDS,
    SourceOptions,
    is_pattern,
    remote_scheme,
)
from dasl_core.storage import check_location, check_tree, open_storage
from dasl_core.vocabulary import is_image_name

_GLOB = re.compile(r"[*?\[]")
_SHOWN = 5
_MOST_FILES = 100_000
# Each file of a folder is compared with each pattern.
_MOST_PATTERNS = 100
# Number of files that are inspected to find out what a folder contains.
_LOOKED_AT = 10_000


def _file_kind(name: str) -> str | None:
    return SOURCE_KINDS.get(posixpath.splitext(name)[1].lower())


def _kind_at(location: str) -> str | None:
    return next((kind for kind, source in SOURCES.items() if source.is_at(location)), None)


def find_source(
    location: str,
    options: SourceOptions = DEFAULT_OPTIONS,
    allowed: ReadableFolders = EVERY_FOLDER,
) -> SourceRecord:
    """Detect what a location is: a folder, a list, archives, tables, an array or a Hugging Face data set.

    Args:
        location: a path, a `file://` URI or one of an object store; its last part may be a pattern with ``*`` or
            ``{000..012}`` for several archives or tables.

    Raises:
        ValueError: it does not exist, may not be read, or is of no known kind; the message is a sentence.
    """
    if not location:
        raise ValueError(
            "the location is empty; expected a folder of images, an archive, a list or a table"
        )
    if "\0" in location:
        raise ValueError("the location contains a null character; expected a path or a URI")
    if (scheme := remote_scheme(location)) is None:
        location = str(local_path(location)) if "://" in location else os.path.abspath(location)
    elif kind := _kind_at(location):
        return SourceRecord(kind, location, location, (), options)
    check_location(location, allowed)
    folder, name = posixpath.split(location.rstrip("/"))
    if scheme is None:
        folder = os.path.realpath(folder)
    try:
        # A local folder's name may look like a pattern.
        if is_pattern(name) and (scheme is not None or not os.path.exists(location)):
            return _describe_pattern(folder, name, location, options, allowed)
        if scheme is None:
            return _describe_path(location, options, allowed)
        _refuse_compressed(location)
        if kind := _file_kind(name):
            open_storage(folder, "inside", allowed).info(name)
            return SourceRecord(kind, location, folder, (name,), options)
        return _describe_folder(location, options, allowed)
    except FileNotFoundError:
        raise ValueError(
            f"{location} does not exist; expected a folder of images, an archive, a list or a table"
        ) from None
    except OSError as error:
        raise ValueError(f"{location} cannot be read: {error.strerror or error}") from error


def _describe_path(location: str, options: SourceOptions, allowed: ReadableFolders) -> SourceRecord:
    real = Path(os.path.realpath(location))
    if real.is_dir():
        if kind := _kind_at(str(real)):
            return SourceRecord(kind, str(real), str(real), (), options)
        return _describe_folder(str(real), options, allowed)
    if not real.exists():
        raise FileNotFoundError(location)
    _refuse_compressed(location)
    kind = _file_kind(real.name) or _file_kind(location)
    if kind is None:
        raise ValueError(
            f"{location} is a file; expected a folder of images, or a file that ends in {', '.join(SOURCE_KINDS)}"
        )
    return SourceRecord(kind, str(real), str(real.parent), (real.name,), options)


def _describe_folder(
    location: str, options: SourceOptions, allowed: ReadableFolders
) -> SourceRecord:
    """Describe a folder: as images, unless it has only archives or tables."""
    check_tree(location, allowed)
    storage = open_storage(location, options.links, allowed)
    kinds: dict[str, list[str]] = {}
    for number, file in enumerate(storage.files()):
        kind = _file_kind(file.path)
        if file.reason is None and kind and SOURCES[kind].in_several_files:
            kinds.setdefault(kind, []).append(file.path)
        if is_image_name(file.path) or (number >= _LOOKED_AT and not kinds):
            kinds = {}
            break
    if len(kinds) > 1:
        raise ValueError(
            f"{location} contains {' and '.join(sorted(kinds))} files; register one kind of them, with a "
            "pattern such as *.tar"
        )
    for kind, files in kinds.items():
        return SourceRecord(kind, storage.uri, storage.uri, tuple(sorted(files)), options)
    return SourceRecord("folder", storage.uri, storage.uri, (), options)


def _describe_pattern(
    folder: str, name: str, location: str, options: SourceOptions, allowed: ReadableFolders
) -> SourceRecord:
    storage = open_storage(folder, options.links, allowed)
    expanded = _expand(name)
    named = {location for location in expanded if not _GLOB.search(location)}
    patterns = [location for location in expanded if location not in named]
    files = sorted(
        file.path
        for file in storage.files(nested=False)
        if file.reason is None
        and (file.path in named or any(fnmatch(file.path, pattern) for pattern in patterns))
    )
    # A range names each file, so an absent one is an error; a pattern only selects.
    if absent := sorted(named.difference(files)):
        some = ", ".join(absent[:_SHOWN]) + (" ..." if len(absent) > _SHOWN else "")
        raise ValueError(
            f"{location} names {len(named)} files, of which {len(absent)} do not exist or may not be read: {some}; "
            "correct the range, or take the files that are there with *"
        )
    kinds = {_file_kind(file) for file in files}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is None or not SOURCES[kind].in_several_files:
        raise ValueError(
            f"{location} matches {len(files)} files; expected tar, zip or Parquet files, of one kind"
        )
    return SourceRecord(kind, f"{storage.uri}/{name}", storage.uri, tuple(files), options)


def _expand(pattern: str) -> list[str]:
    """Expand ``{a,b}`` and ``{000..012}``, as WebDataset does.

    Raises:
        ValueError: there are more than 100,000 files, or more than 100 patterns.
    """
    has_glob = _GLOB.search(pattern) is not None
    choices: list[list[str]] = []
    total = 1
    for part in re.split(r"(\{[^{}]*\})", pattern):
        numbers = re.fullmatch(r"\{(\d+)\.\.(\d+)\}", part)
        is_list = part.startswith("{") and part.endswith("}")
        if numbers:
            total *= max(1, int(numbers[2]) - int(numbers[1]) + 1)
        elif is_list:
            total *= part.count(",") + 1
        if has_glob and total > _MOST_PATTERNS:
            raise ValueError(
                f"location: the braces of {pattern[:200]} stand for more than {_MOST_PATTERNS} patterns, the limit for "
                "a name with *, ? or [. Use fewer alternatives, or braces alone"
            )
        # A name has up to 255 bytes.
        if total > _MOST_FILES or total * len(pattern) > _MOST_FILES * 255:
            raise ValueError(f"{pattern[:200]} stands for more than {_MOST_FILES:,} files")
        if numbers:
            width = len(numbers[1])
            span = range(int(numbers[1]), int(numbers[2]) + 1)
            choices.append([f"{number:0{width}}" for number in span])
        else:
            choices.append(part[1:-1].split(",") if is_list else [part])
    return ["".join(each) for each in product(*choices)]


def _refuse_compressed(location: str) -> None:
    if location.lower().endswith(COMPRESSED_ENDINGS):
        raise ValueError(f"{location} {COMPRESSED}")
