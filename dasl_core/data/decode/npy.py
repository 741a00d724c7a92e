"""NumPy's .npy files: an array (H, W) or (H, W, bands)."""

from threading import Lock
from typing import IO

import numpy as np
from numpy.lib import format as npy_format

from dasl_core.data.decode.header import Header, pixel_type
from dasl_core.data.decode.pixels import Pixels, default_colors, from_file_type

MAGIC = npy_format.MAGIC_PREFIX
FEW_BANDS = 4
"""Length up to which an axis is one of bands, if the others are longer: gray or color, with opacity or near infrared."""
# NumPy parses headers with `ast.literal_eval`, which CPython 3.11 may fail in several threads at once: "AST
# constructor recursion depth mismatch" (python/cpython#106905).
_PARSING = Lock()


def read_header(file: IO[bytes]) -> Header:
    """Read the header of an array; see `dasl_core.data.decode.read_header`."""
    return _read(file)[0]


def decode(file: IO[bytes]) -> Pixels:
    """Read an array; see `dasl_core.data.decode.decode`."""
    header, shape, by_columns, stored = _read(file)
    size = header.width * header.height * header.bands * stored.itemsize
    content = file.read(size)
    if len(content) < size:
        raise ValueError(
            f"the image is damaged: {len(content)} of {size} bytes of pixels are there"
        )
    values = np.frombuffer(content, stored).reshape(shape, order="F" if by_columns else "C")
    values = values.reshape(header.height, header.width, header.bands)
    return Pixels(from_file_type(values), default_colors(header.bands))


def read_array_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Read the header of an array: its shape, whether it is in Fortran order, and its type.

    Raises:
        ValueError: it is damaged, or of a version other than 1.0 and 2.0.
        OSError: the file cannot be read.
    """
    try:
        version = npy_format.read_magic(file)
        read = {
            (1, 0): npy_format.read_array_header_1_0,
            (2, 0): npy_format.read_array_header_2_0,
        }.get(version)
        if read is not None:
            with _PARSING:
                return read(file)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # also of Python's parser and tokenizer
        raise ValueError("its header is cut off, or not one of .npy") from error
    raise ValueError(f"its version of .npy is {version}, not 1.0 or 2.0")


def _read(file: IO[bytes]) -> tuple[Header, tuple[int, ...], bool, np.dtype]:
    file.seek(0)
    shape, by_columns, stored = read_array_header(file)
    if stored.hasobject:
        raise ValueError(
            "the image is an array of pickled objects, which are not read: save numbers"
        )
    if len(shape) not in (2, 3):
        raise ValueError(
            f"the image is an array of shape {shape}, and must be (H, W) or (H, W, bands); a stack of images is "
            "a data set of its own: register the file itself"
        )
    if len(shape) == 3 and shape[0] <= FEW_BANDS < min(shape[1:]):
        raise ValueError(
            f"the image is an array of shape {shape}, probably (bands, H, W), and must be (H, W, bands): move the bands to "
            "the last axis with numpy.moveaxis. A stack of images is a data set of its own: register the file itself"
        )
    height, width, bands = (*shape, 1)[:3]
    is_color = default_colors(bands) != "any"
    header = Header(width, height, bands, pixel_type(stored), "NPY", is_color)
    return header.checked(), shape, by_columns, stored
