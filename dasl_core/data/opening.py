"""Opening of a source's images, with a reason on failure or change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import BinaryIO

from dasl_core.data.checksums import compute_checksum
from dasl_core.data.decode import is_transient
from dasl_core.data.decode.reasons import CHANGED, describe_failure
from dasl_core.data.sources import Entry, Source


@contextmanager
def open_image(source: Source, entry: Entry, *, header: bool = False) -> Iterator[BinaryIO]:
    """Context manager that opens an image.

    Args:
        header: whether only the header is read.

    Raises:
        ValueError: it cannot be opened; the message is the reason.
    """
    try:
        file = source.open_header(entry) if header else source.open(entry)
    except OSError as error:
        raise ValueError(describe_failure(error)) from error
    with file:
        yield file


@contextmanager
def open_unchanged(source: Source, entry: Entry, checksum: int) -> Iterator[BinaryIO]:
    """Context manager that opens an image, unless it has changed since ingest.

    Args:
        checksum: result of `compute_checksum` at ingest.

    Raises:
        ValueError: it cannot be opened, or has changed; the message is the reason.
    """
    with ExitStack() as stack:
        try:
            file = stack.enter_context(open_image(source, entry))
        except ValueError as error:
            if not source.files or is_transient(str(error)):
                raise
            if _has_changed_inside(source, entry, checksum):
                raise ValueError(CHANGED) from error
            raise
        if compute_checksum(file, inflates=source.inflates) != checksum:
            raise ValueError(CHANGED)
        yield file


def _has_changed_inside(source: Source, entry: Entry, checksum: int) -> bool:
    """Whether an archive or a table has other content where ingest read an image's header."""
    try:
        with open_image(source, entry, header=True) as file:
            return compute_checksum(file, inflates=source.inflates) != checksum
    except ValueError:
        return True
