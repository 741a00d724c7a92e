"""Memory bounds for reading headers of untrusted files."""

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

# Headers have some KiB, rarely an embedded preview or a color profile of a few MB. A damaged or malicious file may
# claim gigabytes.
MOST_OF_HEADER = 64 << 20
# The largest camera RAW files take 200 MB.
MOST_OF_FILE = 1 << 30
# Total bytes of files that threads read whole at a time; a larger file is read alone.
_WHOLE_FILES = 256 << 20


@contextmanager
def bounded(file: IO[bytes], *, whole: bool) -> Iterator[IO[bytes]]:
    """Context manager that yields a file to read a header from; too much of it raises a ValueError.

    Args:
        whole: whether its library reads the whole file; then the thread waits until enough memory is free.
    """
    size = file.seek(0, io.SEEK_END)
    if not whole:
        # A small file needs no limit, which takes as long as the header.
        yield file if size <= MOST_OF_HEADER else _Limited(file)  # type: ignore[misc]
        return
    if size > MOST_OF_FILE:
        raise ValueError(f"the image is too large: a file of {size} bytes")
    with _room.reserved(size):
        yield file


class _Limited(io.BufferedIOBase):
    """A file of which at most `MOST_OF_HEADER` bytes may be read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._left = file, MOST_OF_HEADER
        self.tell, self.seek = file.tell, file.seek  # type: ignore[method-assign]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        most = self._left + 1
        content = self._file.read(most if size is None or size < 0 else min(size, most))
        self._left -= len(content)
        if self._left < 0:
            raise ValueError(
                f"the image is damaged: its header has more than {MOST_OF_HEADER} bytes"
            )
        return content


class _Room:
    """Memory that threads share."""

    def __init__(self, size: int) -> None:
        self._size = self._free = size
        self._changed = threading.Condition()

    @contextmanager
    def reserved(self, size: int) -> Iterator[None]:
        """Context manager that waits for this many bytes, at most for all."""
        share = min(size, self._size)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= share)
            self._free -= share
        try:
            yield
        finally:
            with self._changed:
                self._free += share
                self._changed.notify_all()


_room = _Room(_WHOLE_FILES)
