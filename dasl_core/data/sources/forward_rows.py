"""Forward-only reading of table rows with a bounded cache."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import NamedTuple

# Overhead of a cached row in bytes.
_OF_ROW = 256


class Row(NamedTuple):
    """Position of a row: its table, its group in the table, and its position in the group."""

    table: int
    group: int
    position: int


class ForwardRows:
    """Reads images from groups of rows, in each of which a row is reached only through those before it.

    Several threads may read. Requests for cached rows are served first, then later rows in ascending order, then rows
    for which a group must be read again. So threads that read in order read each group once, and threads that read at
    random read it once for all waiting requests.

    Args:
        open_group: returns batches of a group's images, or reasons where there is none. It and the batches raise
            ValueError for a damaged table.
        most: size of the cache of the last rows in bytes; a batch is always cached whole.
    """

    def __init__(
        self, open_group: Callable[[int, int], Iterator[list[bytes | str]]], most: int
    ) -> None:
        self._open_group, self._most = open_group, most
        self._kept: OrderedDict[Row, bytes | str] = OrderedDict()
        self._kept_bytes = 0
        # The current group, and its first unread row.
        self._batches: Iterator[list[bytes | str]] = iter(())
        self._next = Row(-1, -1, 0)
        # Otherwise each row behind the damage would read the group again.
        self._damaged: dict[tuple[int, int], tuple[int, str]] = {}
        self._changed = threading.Condition()
        self._is_reading = False
        self._waiting: list[Row] = []

    def read(self, row: Row) -> bytes | str:
        """Return the image of a row, or why it has none; a ValueError if the table is damaged, an OSError if unread."""
        with self._turn(row):
            if row not in self._kept:
                self._advance(row)
            self._kept.move_to_end(row)
            return self._kept[row]

    @contextmanager
    def _turn(self, row: Row) -> Generator[None, None, None]:
        with self._changed:
            self._waiting.append(row)
            self._changed.wait_for(lambda: not self._is_reading and row == self._first())
            self._waiting.remove(row)
            self._is_reading = True
        try:
            yield
        finally:
            with self._changed:
                self._is_reading = False
                self._changed.notify_all()

    def _first(self) -> Row:
        return min(self._waiting, key=lambda row: (row not in self._kept, row < self._next, row))

    def _advance(self, row: Row) -> None:
        """Read and cache the rows up to the end of a row's batch."""
        group = row[:2]
        first_damaged, reason = self._damaged.get(group, (None, ""))
        if first_damaged is not None and row.position >= first_damaged:
            raise ValueError(reason)
        try:
            if group != self._next[:2] or row < self._next:
                self._batches, self._next = iter(()), Row(*group, 0)  # releases the group before
                self._batches = self._open_group(*group)
            while self._next <= row:
                batch = next(self._batches, None)
                if batch is None:
                    raise ValueError("its group of rows has fewer rows than the table says")
                self._keep(batch)
        except ValueError as error:
            self._damaged[group] = self._next.position, str(error)
            raise
        finally:
            if self._next <= row:  # After a failure, the next request must open a group again.
                self._next = Row(-1, -1, 0)

    def _keep(self, batch: list[bytes | str]) -> None:
        for position, image in enumerate(batch, self._next.position):
            row = self._next._replace(position=position)
            self._kept_bytes -= _size(self._kept.pop(row, None))
            self._kept[row] = image
            self._kept_bytes += _size(image)
        self._next = self._next._replace(position=self._next.position + len(batch))
        while self._kept_bytes > self._most and len(self._kept) > len(batch):
            self._kept_bytes -= _size(self._kept.popitem(last=False)[1])


def _size(image: bytes | str | None) -> int:
    return 0 if image is None else len(image) + _OF_ROW
