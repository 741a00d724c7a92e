"""Arrays and JSON in one file, in the format of safetensors, mapped into memory when read."""

import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dasl_core.atomic import write_atomically

_ABOUT = "about"
# Alignment of arrays in bytes, for memory mapping.
_ALIGNMENT = 8
_MAX_HEADER = 1 << 30
_TYPES = {"U8": np.uint8, "I32": np.int32, "I64": np.int64, "U64": np.uint64, "F64": np.float64}
_NAMES = {np.dtype(kind): name for name, kind in _TYPES.items()}


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> None:
    """Write arrays and a JSON mapping, atomically; the same content gives the same bytes.

    The safetensors library is not used because it writes metadata in random order.
    """
    body, header, checksum = bytearray(), {}, 0
    for name, array in arrays.items():
        content = np.ascontiguousarray(array).tobytes()
        begin = len(body)
        body += content + bytes(-len(content) % _ALIGNMENT)
        header[name] = {
            "dtype": _NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [begin, begin + len(content)],
        }
    checksum = zlib.crc32(body)
    text = json.dumps({**about, "crc32": checksum}, separators=(",", ":"))
    start = json.dumps({"__metadata__": {_ABOUT: text}, **header}, separators=(",", ":")).encode()
    start += b" " * (-len(start) % _ALIGNMENT)
    write_atomically(path, len(start).to_bytes(8, "little") + start + bytes(body))


@contextmanager
def damage_as(sentence: str) -> Iterator[None]:
    """Context manager that raises a ValueError with this beginning for any error but an OSError.

    Damaged files raise arbitrary exception types.
    """
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        detail = f"it has no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{sentence}: {detail}") from error


def read_arrays(path: Path, version: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Map the arrays of a file that `write_arrays` wrote; they are read-only.

    Raises:
        ValueError: it is damaged, or its "format" is not this version.
        OSError: it cannot be read.
    """
    mapped = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)
    length = int.from_bytes(mapped[:8].tobytes(), "little")
    if not 0 < length <= min(_MAX_HEADER, len(mapped) - 8):
        raise ValueError("it is cut off, or of another format")
    header = json.loads(mapped[8 : 8 + length].tobytes())
    about = json.loads(header.pop("__metadata__")[_ABOUT])
    body = mapped[8 + length :]
    if zlib.crc32(body.data) != about.pop("crc32"):
        raise ValueError("its content does not have the checksum that it should have")
    if about["format"] != version:
        raise ValueError(f"its format is {about['format']!r}, expected {version}")
    arrays = {}
    for name, array in header.items():
        begin, end = array["data_offsets"]
        arrays[name] = body[begin:end].view(_TYPES[array["dtype"]]).reshape(array["shape"])
    return arrays, about
