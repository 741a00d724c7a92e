"""A stack of images in one `.npy` file."""

from __future__ import annotations

import io
import math
from typing import BinaryIO

import numpy as np

from dasl_core.data.decode.header import MAX_VALUES
from dasl_core.data.decode.npy import read_array_header
from dasl_core.data.sources.base import (
    Entry,
    Listing,
    OnListed,
    Source,
    SourceRecord,
    check_count,
    register,
)
from dasl_core.data.sources.storage import one_line
from dasl_core.spec.locations import ReadableFolders

# Limit on the header of a `.npy` file in bytes.
_HEADER = 1 << 14


@register("npy")
class ArraySource(Source):
    """The images of an array (N, H, W) or (N, H, W, C) in a `.npy` file. They have no labels."""

    def __init__(self, record: SourceRecord, allowed: ReadableFolders) -> None:
        self.storage, self.files = record.storage(allowed), record.files
        self._shape: tuple[int, ...] | None = None
        self._dtype = np.dtype(np.uint8)
        self._start = 0

    def list_entries(self, on_listed: OnListed) -> Listing:
        name = self.files[0]
        self._read_header()
        assert self._shape is not None, "it was just read"
        about = self.storage.info(name)
        count, size = self._shape[0], self._image_bytes()
        if self._start + count * size > about.size:
            raise ValueError(f"{name} is cut off: it has {about.size} bytes, not {count * size}")
        check_count(name, count)
        digits = len(str(count))
        on_listed(count)
        return Listing(
            [
                Entry(f"{position:0{digits}}.npy", size, about.stamp, 0, position)
                for position in range(count)
            ],
            [],
        )

    def open(self, entry: Entry) -> BinaryIO:
        if self._shape is None:
            self._read_header()
        assert self._shape is not None, "it was just read"
        size = self._image_bytes()
        content = self.storage.read(self.files[0], self._start + entry.offset * size, size)
        if len(content) < size:
            raise ValueError("the file is cut off in this image")
        image = np.frombuffer(content, self._dtype).reshape(self._shape[1:])
        file = io.BytesIO()
        np.save(file, image, allow_pickle=False)
        file.seek(0)
        return file

    def _image_bytes(self) -> int:
        assert self._shape is not None, "the header is read first"
        return math.prod(self._shape[1:]) * self._dtype.itemsize

    def _read_header(self) -> None:
        name = self.files[0]
        file = io.BytesIO(self.storage.read(name, 0, _HEADER))
        try:
            shape, fortran, dtype = read_array_header(file)
        except Exception as error:  # damaged headers raise almost anything
            raise ValueError(f"{name} is not a .npy file: {one_line(error)}") from error
        if len(shape) not in (3, 4) or fortran or dtype.hasobject or dtype.kind not in "uif":
            raise ValueError(
                f"{name} has the shape {shape} and the type {dtype}; expected numbers (N, H, W) or "
                "(N, H, W, C), in C order"
            )
        if not math.prod(shape):
            raise ValueError(f"{name} is empty: its shape is {shape}")
        if math.prod(shape[1:]) > MAX_VALUES:
            raise ValueError(f"{name} has the shape {shape}; an image may have {MAX_VALUES} values")
        self._start, self._dtype = file.tell(), dtype
        self._shape = shape
