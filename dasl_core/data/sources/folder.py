"""A folder in which each file is an image."""

from typing import BinaryIO

from dasl_core.data.sources.base import (
    Entry,
    Lister,
    Listing,
    OnListed,
    Skipped,
    Source,
    SourceRecord,
    is_image_name,
)
from dasl_core.data.sources.storage import check_tree
from dasl_core.data.sources.table import NO_PATH, read_rows
from dasl_core.spec.locations import ReadableFolders


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
                lister.ignore(file.path)
        return lister.listing()

    def open(self, entry: Entry) -> BinaryIO:
        return self.storage.open(entry.key, entry.length)


class ListSource(Source, kind="list"):
    """The images that a text file lists: one path a line, or a table with columns for path, label and split.

    Paths are relative to the folder of the list, or absolute. A table has a line of column names, one of which is
    "path", "image", "file" or "filename"; "label" or "class", and "split", are optional. Fields are separated by
    commas, by semicolons if the line of names has no comma, or by tabs in a `.tsv` file.
    """

    each_image_is_a_file = has_columns = True
    keys_are_inside = False

    def __init__(self, record: SourceRecord, allowed: ReadableFolders) -> None:
        # The paths in a list may point to any readable folder.
        self.storage, self.name = record.storage(allowed, "follow"), record.files[0]
        # Skipped rows are listed only for this split, and for rows without one.
        self.split, self.group_column = record.options.split, record.options.group_column

    def list_entries(self, on_listed: OnListed) -> Listing:
        lister = Lister(on_listed, self.split)
        paths: set[str] = set()
        with self.storage.open(self.name) as file:
            for row in read_rows(file, self.name, self.group_column):
                if isinstance(row, Skipped):
                    lister.skip(*row)
                    continue
                path, label, split, group = row
                if not path:
                    lister.skip(NO_PATH, "its row in the list has no path", split)
                # Databases and file systems cannot store it.
                elif "\0" in f"{path}{label}{split}{group}":
                    lister.skip(path, "its row in the list contains a null character", split)
                elif path in paths:
                    lister.skip(path, "it is listed more than once", split)
                else:
                    try:
                        info = self.storage.info(path)
                    except (OSError, ValueError) as error:
                        reason = getattr(error, "strerror", None) or error
                        lister.skip(path, f"it cannot be read: {reason}", split)
                        continue
                    paths.add(path)
                    lister.add(Entry(path, info.size, info.stamp, 0, 0, label, split, group))
        return lister.listing()

    def open(self, entry: Entry) -> BinaryIO:
        return self.storage.open(entry.key, entry.length)
