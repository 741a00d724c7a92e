"""A folder in which each file is an image."""

import re
import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from pathlib import PurePosixPath
from typing import BinaryIO

from dasl_core.data.sources.base import (
    Entry,
    Lister,
    Listing,
    OnListed,
    Source,
    SourceRecord,
)
from dasl_core.data.sources.table import NO_PATH, Row, read_paths, read_table
from dasl_core.spec.locations import ReadableFolders
from dasl_core.storage import File, check_tree
from dasl_core.text import at_line
from dasl_core.vocabulary import is_image_name


class FolderSource(Source, kind="folder"):
    """The images below a folder, local or in an object store."""

    has_folders = each_image_is_a_file = True

    def __init__(self, record: SourceRecord, allowed: ReadableFolders) -> None:
        check_tree(record.root, allowed)
        self.storage = record.storage(allowed, record.options.links)

    def list_entries(self, on_listed: OnListed) -> Listing:
        lister = Lister(on_listed)
        for file in self.storage.files():
            if file.reason is not None:
                lister.skip(file.path, file.reason)
            elif is_image_name(file.path):
                lister.add(Entry(file.path, file.size, file.stamp))
            else:
                lister.ignored.add(file.path)
        return lister.listing()

    def open(self, entry: Entry) -> BinaryIO:
        return self.storage.open(entry.key, entry.length)


class PathsSource(Source, kind="paths"):
    """The images whose paths a text file lists, one a line: relative to the folder of the list, or absolute."""

    each_image_is_a_file = True
    keys_are_inside = False

    def __init__(self, record: SourceRecord, allowed: ReadableFolders) -> None:
        # The paths in a list may point to any readable folder.
        self.storage, self.name = record.storage(allowed, "follow"), record.files[0]
        self.options = record.options

    def list_entries(self, on_listed: OnListed) -> Listing:
        # Skipped rows are listed only for this split, and for rows without one.
        lister = Lister(on_listed, self.options.split)
        labels: dict[str, str | None] = {}
        with self.storage.open(self.name) as file:
            for line, path, label, split, group in self._rows(file, lister):
                try:
                    info = self._check(path, label, split, group)
                    if info.path in labels:
                        other = ", and its first row has another label"
                        other *= labels[info.path] != label
                        raise ValueError(f"it is listed more than once{other}")
                except ValueError as error:
                    lister.skip(path or NO_PATH, at_line(str(error), line), split)
                    continue
                labels[info.path] = label
                lister.add(Entry(info.path, info.size, info.stamp, 0, 0, label, split, group))
        return lister.listing()

    def _rows(self, file: BinaryIO, lister: Lister) -> Iterator[Row]:
        return read_paths(file, self.name)

    def _check(self, path: str, *fields: str | None) -> File:
        """Return the file of a row; a ValueError with the reason if it cannot be used."""
        if not path:
            raise ValueError("its row in the list has no path")
        # Databases and file systems cannot store it.
        if "\0" in f"{path}{''.join(filter(None, fields))}":
            raise ValueError("its row in the list contains a null character")
        try:
            return self._find(path)
        except FileNotFoundError:
            raise ValueError(f"there is no such file. {_advise(path)}") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ValueError(f"it cannot be read: {reason}") from error

    def _find(self, path: str) -> File:
        """Find a file by its path, also as Windows or another system's Unicode form writes it."""
        forms = [unicodedata.normalize(form, path) for form in ("NFC", "NFD")]
        forms = [path, *forms, *(form.replace("\\", "/") for form in forms)]
        for form in dict.fromkeys(str(PurePosixPath(form)) for form in forms):
            with suppress(FileNotFoundError):
                return self.storage.info(form)
        return self.storage.info(path)

    def open(self, entry: Entry) -> BinaryIO:
        return self.storage.open(entry.key, entry.length)


class ListSource(PathsSource, kind="list"):
    """The images of a table with a line of column names: a list with paths, and perhaps labels and splits.

    The column of paths is "path", "image", "file" or "filename"; "label" or "class", and "split", are optional.
    """

    def _rows(self, file: BinaryIO, lister: Lister) -> Iterator[Row]:
        return read_table(file, self.name, self.options, lister)


def _advise(path: str) -> str:
    """Return what to do about a path in a list without a file."""
    if "://" in path:
        return "It is an address: expected a path, relative to the folder of the list. Download what is elsewhere"
    if (match := re.fullmatch(r"(.+\.\w+)[\s,;]+\S+", path)) and is_image_name(match[1]):
        return "It seems to be followed by a label: write a .csv with a first line path,label"
    return (
        "A path has the ending of its file, and is relative to the folder of the list, or absolute on the machine that "
        "reads it"
    )
