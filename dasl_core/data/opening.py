"""Opening an image of a source, with the reason if it cannot be opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from dasl_core.data.decode.reasons import reason_of
from dasl_core.data.sources import Entry, Source


@contextmanager
def open_image(source: Source, entry: Entry) -> Iterator[BinaryIO]:
    """Context manager that opens an image.

    Raises:
        ValueError: it cannot be opened; the message is the reason.
    """
    try:
        file = source.open(entry)
    except OSError as error:
        raise ValueError(reason_of(error)) from error
    with file:
        yield file
