"""Lists of images in text files."""

import codecs
import csv
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import BinaryIO, NamedTuple, TextIO

from dasl_core.data.sources.base import Lister
from dasl_core.spec.source import SourceOptions
from dasl_core.text import at_line, counted

PATH_COLUMNS = ("path", "image", "file", "filename", "image_path", "file_name")
LABEL_COLUMNS = ("label", "class", "class_name", "category")
NO_PATH = "(no path)"
# Limit on lines, since a binary file may have no line end.
_MOST_CHARACTERS = 1 << 16


class Row(NamedTuple):
    """A row of a list, and the line in which it begins, from 1."""

    line: int
    path: str
    label: str | None = None
    split: str | None = None
    group: str | None = None


def read_paths(file: BinaryIO, name: str) -> Iterator[Row]:
    """Yield the rows of a list with one path a line.

    Raises:
        ValueError: it is not such a list; the message names the file.
    """
    with _errors(name):
        for number, line in enumerate(_text(file), 1):
            path = line.strip()
            if path and not path.startswith("#"):
                yield Row(number, path)


def read_table(file: BinaryIO, name: str, options: SourceOptions, lister: Lister) -> Iterator[Row]:
    """Yield the rows of a list with columns, separated by commas, semicolons or tabs.

    Args:
        lister: gets the columns, and rows that lack a field as skipped, with their line numbers.

    Raises:
        ValueError: it is not such a list, or lacks a column; the message names the file.
    """
    csv.field_size_limit(_MOST_CHARACTERS)
    with _errors(name):
        text = _text(file)
        first, before = text.readline(), 0
        if first.lower().startswith("sep="):  # Excel's line about the separator
            first, before = text.readline(), 1
        # The separator is the one with which the line of names has a column of paths, or else the most columns.
        path_columns = PATH_COLUMNS if options.image_column is None else (options.image_column,)
        separator, header = max(
            ((each, _header(first, each)) for each in ",;\t"),
            key=lambda found: (_find(found[1], path_columns) is not None, len(found[1])),
        )
        record: list[str] = []  # lines of the row that is read

        def lines() -> Iterator[str]:
            for line in chain([first], text):
                record.append(line)
                yield line

        rows = csv.reader(lines(), delimiter=separator, skipinitialspace=True)
        next(rows, None)
        record.clear()
        path = _find(header, path_columns)
        if path is None and options.image_column is None:
            raise ValueError(
                f"{name} has no column of paths; expected a first line with {', '.join(PATH_COLUMNS[:4])} "
                f"among the names of its columns, not {', '.join(header[:10])!r}. Add such a line, call the column of "
                "the paths path, or name it with dasl datasets add --image-column (image_column in the API)"
            )
        for column in (options.image_column, options.label_column, options.group_column):
            if column is not None and _find(header, (column,)) is None:
                columns = ", ".join(header[:10])
                raise ValueError(f"{name} has no column {column!r}; its columns are {columns}")
        assert path is not None, "the requested column was found"
        labels = LABEL_COLUMNS if options.label_column is None else (options.label_column,)
        label, split = _find(header, labels), _find(header, ("split", "subset"))
        group = None if options.group_column is None else _find(header, (options.group_column,))
        positions = [each for each in (path, label, split, group) if each is not None]
        lister.columns.update(filter(None, header))
        lister.used_columns.update(header[position] for position in positions)
        for row in rows:
            line = before + rows.line_num - len(record) + 1
            if len(record) > 1 and "".join(record).count('"') % 2:
                raise csv.Error(f"the row that begins in line {line} has no end")
            record.clear()
            # Such as an unquoted comma in a label. Spreadsheets write empty fields at the end.
            if len(row) > max(positions) and not any(row[len(header) :]):
                fields = (_field(row, position) for position in (label, split, group))
                yield Row(line, row[path].strip(), *fields)
            elif row:
                reason = (
                    f"its row has {counted(len(row), 'field')}, and the first line {len(header)}"
                )
                if len(row) > len(header):
                    reason += ". Put quotes around a field that contains the separator"
                lister.skip(row[path] if path < len(row) else NO_PATH, at_line(reason, line))


def _text(file: BinaryIO) -> TextIO:
    is_utf16 = file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    file.seek(0)
    return io.TextIOWrapper(file, "utf-16" if is_utf16 else "utf-8-sig", newline="")


@contextmanager
def _errors(name: str) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{name} is not a list of images in UTF-8: {error}. If it is text, save it as UTF-8"
        ) from error
    except csv.Error as error:
        raise ValueError(
            f"{name} is not a list of images: {error}. Perhaps a quotation mark is not closed; one within a field is doubled"
        ) from error


def _header(line: str, separator: str) -> list[str]:
    fields = next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])
    return [field.replace("\ufeff", "").strip() for field in fields]


def _find(header: Sequence[str], names: Sequence[str]) -> int | None:
    """Return the position of the first of these columns, whatever the case of their letters."""
    columns = [column.lower() for column in header]
    wanted = (name.strip().lower() for name in names)
    return next((columns.index(name) for name in wanted if name in columns), None)


def _field(row: list[str], position: int | None) -> str | None:
    return None if position is None else row[position].strip() or None
