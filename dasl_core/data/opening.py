"""Opening an image of a source, with the reason if it cannot be opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from dasl_core.data.decode.reasons import reason_of
from dasl_core.data.sources import Entry, Source


@contextmanager
def open_image(source: Source, entry: Entry, *, header: bool = False) -> Iterator[BinaryIO]:
    """Context manager that opens an image.

    Args:
        header: only its header is read.

    Raises:
        ValueError: it cannot be opened; the message is the reason.
    """
    try:
        file = source.open_header(entry) if header else source.open(entry)
    except OSError as error:
        raise ValueError(reason_of(error)) from error
    with file:
        yield file
