"""Images of published data sets, and text lists of them: columns separated by white space."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class PackedFile:
    """A file in an archive: its size in bytes, and a function that reads it while the archive is open."""

    size: int
    read: Callable[[], bytes]


@dataclass(frozen=True)
class PublishedImage:
    """One image and its place in the published split.

    Attributes:
        part: part of the split: "train", "test" or "val".
        class_name: name of the class, which becomes a folder.
        name: file name, unique within the part and class; of In-shop's test part with a folder,
            "query" or "gallery".
        content: the file, a file in an archive, or pixels (height, width, 3) of 8 bits.
    """

    part: str
    class_name: str
    name: str
    content: Path | PackedFile | np.ndarray


def folder_with(source: Path, file: str, *below: str) -> Path:
    """Return the folder that holds a file, `source` or one `below` it; a ValueError that names the file if none."""
    folders = [source, *(source / folder for folder in below)]
    for folder in folders:
        if (folder / file).exists():
            return folder
    raise ValueError(
        f"{file} is missing; looked in {', '.join(map(str, folders))}. Give the authors' unpacked files"
    )


def read_rows(file: Path, columns: int, *, skip: int = 0) -> Iterator[list[str]]:
    """Yield the columns of each line that is not blank.

    Args:
        skip: number of header lines.

    Raises:
        ValueError: the file is missing, or a line has another number of columns.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise ValueError(f"{file} is missing") from None
    for number, line in enumerate(lines[skip:], skip + 1):
        row = line.split()
        if row and len(row) != columns:
            raise ValueError(f"{file}, line {number}: expected {columns} columns, not {line!r}")
        if row:
            yield row
