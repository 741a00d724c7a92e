"""A deflated file that is inflated only as far as it is read."""

import io
import zlib
from typing import Any, BinaryIO

_BLOCK = 1 << 16


class Inflated(io.RawIOBase):
    """A deflated file with one block in memory, for short forward reads.

    Reading before this block inflates from the beginning again.

    Args:
        content: the deflated file, closed with this one.
        name: name of the file.
        size: size of the inflated file in bytes; None: unknown, so seeking to the end inflates all.
        most: limit on the size.
    """

    def __init__(self, content: BinaryIO, name: str, size: int | None, most: int) -> None:
        self.name = name  # as files have; pydicom reads it
        self._content, self._size, self._most = content, size, most
        self._position = 0
        self._begin()

    def _begin(self) -> None:
        self._content.seek(0)
        self._decompressor = zlib.decompressobj(-zlib.MAX_WBITS)
        self._start, self._block = 0, b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END:
            offset += self._measure()
        elif whence == io.SEEK_CUR:
            offset += self._position
        self._position = max(0, offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        if self._size is not None and self._position >= self._size:
            return 0
        if self._position < self._start:
            self._begin()
        while self._position >= self._start + len(self._block):
            if not self._advance():
                return 0
        begin = self._position - self._start
        part = self._block[begin : begin + len(buffer)]
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)

    def close(self) -> None:
        if not self.closed:
            self._content.close()
        super().close()

    def _measure(self) -> int:
        while self._size is None:
            self._advance()
        return self._size

    def _advance(self) -> bool:
        """Inflate the next block; return whether there is one. A ValueError if the file is damaged or too large."""
        block = b""
        while not block and not self._decompressor.eof:
            content = self._decompressor.unconsumed_tail or self._content.read(_BLOCK)
            if not content:
                raise ValueError("the image is cut off in its archive")
            try:
                block = self._decompressor.decompress(content, _BLOCK)
            except zlib.error as error:
                raise ValueError(f"the image is damaged in its archive: {error}") from error
        self._start += len(self._block)
        self._block = block
        if self._start + len(block) > self._most:
            raise ValueError("the file is far too large for an image")
        if not block:
            self._size = self._start
        return bool(block)
