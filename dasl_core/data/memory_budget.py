"""Memory that several threads share, each of which needs a part of it for a while."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class MemoryBudget:
    """A number of bytes, parts of which are lent.

    A part that exceeds it is lent while no other is: the thread that needs it works alone.
    """

    def __init__(self, size: int) -> None:
        self._size = self._free = max(1, size)
        self._returned = threading.Condition()

    @contextmanager
    def lend(self, size: int) -> Iterator[None]:
        """Context manager that waits until so many bytes are free, and lends them."""
        size = min(max(1, size), self._size)
        with self._returned:
            self._returned.wait_for(lambda: size <= self._free)
            self._free -= size
        try:
            yield
        finally:
            with self._returned:
                self._free += size
                self._returned.notify_all()
