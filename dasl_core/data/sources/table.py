"""Lists of images in text files."""

import csv
import io
from collections.abc import Iterator
from typing import BinaryIO

PATH_COLUMNS = ("path", "image", "file", "filename", "image_path", "file_name")
LABEL_COLUMNS = ("label", "class", "class_name", "category")
# A line without an end, as in a binary file, must not fill the memory.
_MOST_CHARACTERS = 1 << 16

Row = tuple[str, str | None, str | None]
"""Path, label and split."""


def read_rows(file: BinaryIO, name: str) -> Iterator[Row]:
    """Yield the rows of a list.

    Raises:
        ValueError: it is not such a list; the message names the file and the line.
    """
    csv.field_size_limit(_MOST_CHARACTERS)
    separator = "\t" if name.lower().endswith(".tsv") else ","
    text = io.TextIOWrapper(file, "utf-8-sig", newline="")
    try:
        if not name.lower().endswith((".csv", ".tsv")):
            for line in text:
                if line.strip() and not line.startswith("#"):
                    yield line.rstrip("\r\n"), None, None
            return
        rows = csv.reader(text, delimiter=separator)
        header = [field.strip().lower() for field in next(rows, [])]
        path, label, split = (
            next((header.index(each) for each in names if each in header), None)
            for names in (PATH_COLUMNS, LABEL_COLUMNS, ("split", "subset"))
        )
        if path is None:
            raise ValueError(
                f"{name} has no column of paths; expected a first line with {', '.join(PATH_COLUMNS[:4])} "
                f"among the names of its columns, not {', '.join(header[:10])!r}"
            )
        for row in rows:
            if not row:
                continue
            if len(row) <= max(path, label or 0, split or 0):
                raise ValueError(
                    f"{name}, line {rows.line_num}, has {len(row)} fields, and the first line {len(header)}"
                )
            yield row[path], _field(row, label), _field(row, split)
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{name} is not a list of images: {error}") from error


def _field(row: list[str], position: int | None) -> str | None:
    return None if position is None else row[position] or None
