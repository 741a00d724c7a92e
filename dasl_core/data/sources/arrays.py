"""A stack of images in one `.npy` file."""

import io
import math
from functools import cached_property
from typing import BinaryIO, NamedTuple

import numpy as np

from dasl_core.data.decode.header import MAX_VALUES
from dasl_core.data.decode.npy import FEW_BANDS, read_array_header
from dasl_core.data.sources.base import Entry, Listing, OnListed, Source, SourceRecord, check_count
from dasl_core.spec.locations import ReadableFolders
from dasl_core.storage import one_line

# Limit on the header of a `.npy` file in bytes.
_HEADER = 1 << 14


class _Array(NamedTuple):
    """The header of a `.npy` file, and where the array begins behind it."""

    shape: tuple[int, ...]
    dtype: np.dtype
    start: int

    @property
    def image_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize


class ArraySource(Source, kind="npy"):
    """The images of an array (N, H, W) or (N, H, W, C) in a `.npy` file. They have no labels."""

    def __init__(self, record: SourceRecord, allowed: ReadableFolders) -> None:
        self.storage, self.files = record.storage(allowed), record.files

    def list_entries(self, on_listed: OnListed) -> Listing:
        name, array = self.files[0], self._array
        about = self.storage.info(name)
        count, size = array.shape[0], array.image_bytes
        if array.start + count * size > about.size:
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
        array, size = self._array, self._array.image_bytes
        content = self.storage.read(self.files[0], array.start + entry.offset * size, size)
        if len(content) < size:
            raise ValueError("the file is cut off in this image")
        image = np.frombuffer(content, array.dtype).reshape(array.shape[1:])
        file = io.BytesIO()
        np.save(file, image, allow_pickle=False)
        file.seek(0)
        return file

    @cached_property
    def _array(self) -> _Array:
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
        if len(shape) == 3 and shape[2] <= FEW_BANDS < min(shape[:2]):
            raise ValueError(
                f"{name} has the shape {shape}, probably one image (H, W, bands); register its folder"
            )
        if not math.prod(shape):
            raise ValueError(f"{name} is empty: its shape is {shape}")
        if math.prod(shape[1:]) > MAX_VALUES:
            raise ValueError(f"{name} has the shape {shape}; an image may have {MAX_VALUES} values")
        return _Array(shape, dtype, file.tell())
