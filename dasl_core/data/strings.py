"""Many strings in two arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np

_CHUNK = 1 << 14


class Strings(Sequence[str]):
    """Strings in two arrays, which processes can map from one file: a million paths take no time to open.

    Args:
        data: (bytes,) uint8, the UTF-8 of all strings, one after the other.
        ends: (N,) int64, where each string ends in `data`.
    """

    def __init__(self, data: np.ndarray, ends: np.ndarray) -> None:
        self.data, self.ends = data, ends

    @classmethod
    def pack(cls, strings: Iterable[str]) -> Strings:
        """Pack strings, unless they are packed already; a UnicodeEncodeError if one is not valid Unicode."""
        if isinstance(strings, Strings):
            return strings
        data, ends = bytearray(), []
        for string in strings:
            data += string.encode()
            ends.append(len(data))
        return cls(np.frombuffer(bytes(data), np.uint8), np.array(ends, np.int64))

    def is_whole(self) -> bool:
        """Whether the ends are in order and inside the data, which files from elsewhere may violate."""
        ends = self.ends
        if not len(ends):
            return True
        return bool(ends[0] >= 0 and (np.diff(ends) >= 0).all() and ends[-1] <= len(self.data))

    def encoded(self, position: int) -> bytes:
        """Return the UTF-8 of one string."""
        begin = int(self.ends[position - 1]) if position else 0
        return self.data[begin : int(self.ends[position])].tobytes()

    def encoded_in_chunks(self, positions: np.ndarray) -> Iterator[list[bytes]]:
        """Yield the UTF-8 of the strings at positions, in short lists; fastest in ascending order."""
        for first in range(0, len(positions), _CHUNK):
            chunk = positions[first : first + _CHUNK]
            ends = self.ends[chunk]
            begins = np.where(chunk > 0, self.ends[chunk - 1], 0)
            low = int(begins.min())
            text = self.data[low : int(ends.max())].tobytes()
            spans = zip((begins - low).tolist(), (ends - low).tolist(), strict=True)
            yield [text[begin:end] for begin, end in spans]

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, position: int) -> str: ...
    @overload
    def __getitem__(self, position: slice) -> list[str]: ...
    def __getitem__(self, position: int | slice) -> str | list[str]:
        if isinstance(position, slice):
            return [self[number] for number in range(*position.indices(len(self)))]
        index = range(len(self))[position]  # negative positions, and IndexError
        return self.encoded(index).decode()

    def __iter__(self) -> Iterator[str]:
        begin = 0
        for end in self.ends.tolist():
            yield self.data[begin:end].tobytes().decode()
            begin = end

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Strings):
            return np.array_equal(self.ends, other.ends) and np.array_equal(self.data, other.data)
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # like a list

    def __repr__(self) -> str:
        return f"Strings.pack({list(self)!r})"
