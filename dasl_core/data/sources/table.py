"""Lists of images in text files."""

import codecs
import csv
import io
from collections.abc import Iterator
from itertools import chain
from typing import BinaryIO

from dasl_core.data.sources.base import Skipped
from dasl_core.data.sources.storage import printable

PATH_COLUMNS = ("path", "image", "file", "filename", "image_path", "file_name")
LABEL_COLUMNS = ("label", "class", "class_name", "category")
NO_PATH = "(no path)"
# Limit on lines, since a binary file may have no line end.
_MOST_CHARACTERS = 1 << 16

Row = tuple[str, str | None, str | None, str | None]
"""Path, label, split and group."""


def read_rows(
    file: BinaryIO, name: str, group_column: str | None = None
) -> Iterator[Row | Skipped]:
    """Yield the rows of a list; a row that lacks a field is yielded as skipped, with its line number.

    Raises:
        ValueError: it is not such a list; the message names the file.
    """
    csv.field_size_limit(_MOST_CHARACTERS)
    is_utf16 = file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    file.seek(0)
    text = io.TextIOWrapper(file, "utf-16" if is_utf16 else "utf-8-sig", newline="")
    try:
        if not name.lower().endswith((".csv", ".tsv")):
            if group_column is not None:
                raise ValueError(f"{name} is a list of paths and has no column {group_column!r}")
            for line in text:
                path_of_line = line.strip()
                if path_of_line and not path_of_line.startswith("#"):
                    yield path_of_line, None, None, None
            return
        first = text.readline()
        separator = "\t" if name.lower().endswith(".tsv") else ","
        if (
            separator not in first and ";" in first
        ):  # as spreadsheets write where the comma is a decimal sign
            separator = ";"
        rows = csv.reader(chain([first], text), delimiter=separator)
        header = [field.strip().lower() for field in next(rows, [])]
        path, label, split = (
            next((header.index(name) for name in names if name in header), None)
            for names in (PATH_COLUMNS, LABEL_COLUMNS, ("split", "subset"))
        )
        if path is None:
            raise ValueError(
                f"{name} has no column of paths; expected a first line with {', '.join(PATH_COLUMNS[:4])} "
                f"among the names of its columns, not {', '.join(header[:10])!r}"
            )
        group = None
        if group_column is not None:
            if (wanted := group_column.strip().lower()) not in header:
                columns = ", ".join(header[:10])
                raise ValueError(
                    f"{name} has no column {group_column!r}; its columns are {columns}"
                )
            group = header.index(wanted)
        for row in rows:
            if not row:
                continue
            if len(row) <= max(path, label or 0, split or 0, group or 0):
                yield _short(row, path, rows.line_num, len(header))
            else:
                yield row[path], _field(row, label), _field(row, split), _field(row, group)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{name} is not a list of images in UTF-8: {error}. If it is text, save it as UTF-8"
        ) from error
    except csv.Error as error:
        raise ValueError(f"{name} is not a list of images: {error}") from error


def _short(row: list[str], path: int, line: int, columns: int) -> Skipped:
    fields = "1 field" if len(row) == 1 else f"{len(row)} fields"
    reason = f"line {line} of the list has {fields}, and the first line {columns}"
    return Skipped(printable(row[path]) if path < len(row) else NO_PATH, reason)


def _field(row: list[str], position: int | None) -> str | None:
    return None if position is None else row[position] or None
