"""Tables of images: Parquet files, as Hugging Face `datasets` and others write them."""

import io
import json
import os
import threading
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from dasl_core.data.decode.reasons import optional_module
from dasl_core.data.sources.base import (
    Entry,
    Lister,
    Listing,
    OnListed,
    Source,
    SourceRecord,
    check_count,
    class_name,
)
from dasl_core.data.sources.forward_rows import ForwardRows, Row
from dasl_core.data.sources.splits import file_split
from dasl_core.data.sources.table import PATH_COLUMNS
from dasl_core.spec.locations import ReadableFolders
from dasl_core.storage import one_line

_FILES = 16
# Rows decoded at once: few, since a dictionary-encoded row may be much larger than in the file.
_BATCH_ROWS = 16
# Size of the image cache in bytes, for threads that read nearly in order.
_KEPT_BYTES = 256 << 20
_LABEL_ROWS = 1 << 16
# With pre_buffer, or without a buffer, pyarrow reads a group's whole column, possibly all rows of the file.
_BUFFER_BYTES = 1 << 20
_NEEDS = "the images are in Parquet files"
_IMAGE_COLUMNS = ("image", "img", "jpg", "png", "bytes", "image_bytes")


class _Table(NamedTuple):
    """An open file, and the end row of each group, (groups,) int64."""

    file: Any
    ends: np.ndarray


class ParquetSource(Source, kind="parquet"):
    """The images of Parquet files: a column of bytes, or of `{bytes, path}` as Hugging Face's images are.

    An image is located by file and row. Rows of a group are read sequentially, so reading is fast in order and slow at
    random (`ForwardRows`). Memory is bounded by `_KEPT_BYTES` and the pages of the file.
    """

    in_several_files = True
    deciding_options = ("image_column",)

    def __init__(self, record: SourceRecord, allowed: ReadableFolders) -> None:
        self.files, self.options = record.files, record.options
        self.storage = record.storage(allowed, self.options.links)
        self._parquet = optional_module("pyarrow.parquet", _NEEDS, "parquet")
        arrow_error: type[Exception] = optional_module("pyarrow", _NEEDS, "parquet").ArrowException
        self._errors = (arrow_error, IndexError)  # from damaged tables
        self._lock = threading.Lock()
        self._opened = lru_cache(_FILES)(self._open_table)
        self._images = ForwardRows(self._read_group, _KEPT_BYTES)

    def list_entries(self, on_listed: OnListed) -> Listing:
        lister = Lister(on_listed)
        for number, name in enumerate(self.files):
            try:
                for entry in self._rows(number, lister):
                    lister.add(entry)
            except (OSError, ValueError, *self._errors) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise  # a failure of the store, not of the file
                lister.skip(name, f"the table cannot be read: {one_line(error)}")
        listing = lister.listing()
        if not listing.entries and listing.skipped:
            raise ValueError("{}: {}".format(*listing.skipped[0]))
        return listing

    def open(self, entry: Entry) -> BinaryIO:
        try:
            ends = self._table(entry.file).ends
        except self._errors as error:
            raise ValueError(f"the table is damaged: {one_line(error)}") from error
        group = int(np.searchsorted(ends, entry.offset, "right"))
        if group == len(ends):
            raise ValueError("the table has fewer rows than at ingest")
        begin = int(ends[group - 1]) if group else 0
        image = self._images.read(Row(entry.file, group, entry.offset - begin))
        if isinstance(image, str):
            raise ValueError(image)
        return io.BytesIO(image)

    def _rows(self, number: int, lister: Lister) -> Iterator[Entry]:
        table, name = self._table(number).file, self.files[number]
        stamp = self.storage.info(name).stamp
        schema, image = table.schema_arrow, self._find_image_column(table)
        label, group_column = lister.choose_columns("it", schema.names, image, self.options)
        names = _class_names(schema, label)
        split = file_split(name)
        stem, digits = os.path.splitext(name)[0], len(str(table.metadata.num_rows))
        check_count(name, table.metadata.num_rows)
        position = 0
        for group in range(table.metadata.num_row_groups):
            absent = [None] * table.metadata.row_group(group).num_rows
            labels, groups = (
                absent if column is None else _values(table, group, column)
                for column in (label, group_column)
            )
            for value, group_value in zip(labels, groups, strict=True):
                key = f"{stem}/{position:0{digits}}"
                label_name = class_name(value, names)
                group_name = class_name(group_value, ())
                yield Entry(key, -1, stamp, number, position, label_name, split, group_name)
                position += 1

    def _table(self, number: int) -> _Table:
        with self._lock:  # several threads open a table only once
            return self._opened(number)

    def _open_table(self, number: int) -> _Table:
        content = self.storage.open(self.files[number])
        file = self._parquet.ParquetFile(content, pre_buffer=False, buffer_size=_BUFFER_BYTES)
        groups = range(file.metadata.num_row_groups)
        counts = [file.metadata.row_group(group).num_rows for group in groups]
        return _Table(file, np.cumsum(counts, dtype=np.int64))

    def _read_group(self, number: int, group: int) -> Iterator[list[bytes | str]]:
        """Yield the images of a row group, or why a row has none, in batches."""
        table = self._table(number).file
        column = self._find_image_column(table)
        try:
            for batch in table.iter_batches(_BATCH_ROWS, [group], [column], use_threads=False):
                yield [_content(value) for value in batch.column(0).to_pylist()]
        except self._errors as error:
            raise ValueError(f"the table is damaged at this row: {one_line(error)}") from error

    def _find_image_column(self, table: Any) -> str:
        schema = table.schema_arrow
        if (column := self.options.image_column) is not None:
            if column not in schema.names:
                raise ValueError(f"it has no column {column!r}; its columns are {schema.names}")
            return column
        fitting = [field.name for field in schema if _holds_images(field.type)]
        named = [name for name in _IMAGE_COLUMNS if name in fitting]
        if not fitting and (paths := [field.name for field in schema if _holds_paths(field)]):
            raise ValueError(
                f"it has only text instead of images (column {paths[0]!r}): of base64, write the decoded bytes; of paths, write "
                "the content of the images, or register their folder, or a .csv list of the paths"
            )
        if not fitting:
            raise ValueError(
                f"it has no column of bytes, such as those of a JPEG file; its columns are {schema.names}"
            )
        if len(fitting) > 1 and not named:
            raise ValueError(
                "it has several columns of bytes; name the column of the images with image_column: its columns are "
                f"{schema.names}"
            )
        return named[0] if named else fitting[0]


def _values(table: Any, group: int, column: str) -> Iterator[Any]:
    """Yield the values of a column in a row group, with `_LABEL_ROWS` of them in memory."""
    for batch in table.iter_batches(_LABEL_ROWS, [group], [column], use_threads=False):
        yield from batch.column(0).to_pylist()


def _content(value: Any) -> bytes | str:
    """Return the image in a value of the image column, or why it has none."""
    content = value.get("bytes") if isinstance(value, dict) else value
    if content is None and isinstance(value, dict) and value.get("path"):
        return "the row has only the path of the image, which is not embedded"
    if isinstance(content, str):
        return "the row has text instead of the bytes of an image"
    return content if isinstance(content, bytes) else "the row has no image"


def _holds_images(kind: Any) -> bool:
    types = optional_module("pyarrow.types", _NEEDS, "parquet")
    if types.is_struct(kind):
        names = [kind.field(position).name for position in range(kind.num_fields)]
        return "bytes" in names and _holds_images(kind.field(names.index("bytes")).type)
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _holds_paths(field: Any) -> bool:
    """Whether a column without bytes has paths: as Hugging Face's images, or by its name."""
    types = optional_module("pyarrow.types", _NEEDS, "parquet")
    if types.is_struct(field.type):
        names = [field.type.field(position).name for position in range(field.type.num_fields)]
        return "path" in names and "bytes" in names
    is_text = types.is_string(field.type) or types.is_large_string(field.type)
    return is_text and field.name.lower() in (*PATH_COLUMNS, *_IMAGE_COLUMNS)


def _class_names(schema: Any, label: str | None) -> list[str]:
    """Return the names of the classes that Hugging Face stores in the file's metadata."""
    try:
        stored = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        names = stored["info"]["features"][label]["names"]
    except (KeyError, TypeError, ValueError):
        return []
    return [str(name) for name in names] if isinstance(names, list) else []
