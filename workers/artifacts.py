"""Transfer of files to and from the artifact store, through fsspec.

Errors of any store are raised as `StoreError`; errors of this machine's disks are not.
"""

import errno
import hashlib
import io
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar

from fsspec.implementations.local import LocalFileSystem

from dasl_core import manifest
from service.object_store import StoreError, open_store, store_errors
from service.wire.checkpoints import FileEntry

logger = logging.getLogger(__name__)

CHUNK = 1 << 20
# Pauses in seconds before retries of a failed copy.
UPLOAD_PAUSES = (1.0, 2.0)

T = TypeVar("T")


class _StoreFile:
    """A file of the store that raises `StoreError`."""

    def __init__(self, uri: str, mode: str) -> None:
        self._uri = uri
        with store_errors(uri):
            system, path = open_store(uri)
            if mode == "wb":
                system.makedirs(os.path.dirname(path), exist_ok=True)
            self._is_local = isinstance(system, LocalFileSystem)
            self._file: Any = system.open(path, mode)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        with store_errors(self._uri):
            self._file.__exit__(*exception)

    def read(self, size: int) -> bytes:
        with store_errors(self._uri):
            content: bytes = self._file.read(size)
        return content

    def write(self, data: bytes) -> None:
        with store_errors(self._uri):
            self._file.write(data)

    def flush(self) -> None:
        """Write durably, because a registered file must survive a power loss."""
        with store_errors(self._uri):
            self._file.flush()
            if self._is_local:
                os.fsync(self._file.fileno())


def upload(
    file: Path,
    uri: str,
    on_chunk: Callable[[], None] = lambda: None,
    *,
    pauses: Sequence[float] = (),
) -> FileEntry:
    """Copy one file to `uri` and return its manifest entry.

    Args:
        on_chunk: called after each part.
        pauses: pauses in seconds before retries.

    Raises:
        OSError: the last attempt failed, or a disk is full.
    """

    def write() -> FileEntry:
        with open(file, "rb") as source:
            size, sha256 = _write(source, uri, on_chunk)
        return FileEntry(name=file.name, size=size, sha256=sha256)

    return _retried(write, uri, pauses)


def _retried(write: Callable[[], T], uri: str, pauses: Sequence[float]) -> T:
    """Call `write`, which may be repeated, with a retry after each pause; errors as for `upload`."""
    for pause in pauses:
        try:
            return write()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise  # waiting does not help
            logger.warning("%s could not be written; trying again: %s", uri, error)
            time.sleep(pause)
    return write()


def upload_checkpoint(
    folder: Path,
    uri: str,
    about: Mapping[str, Any],
    on_chunk: Callable[[], None] = lambda: None,
) -> list[FileEntry]:
    """Copy the files of a checkpoint below `uri`, then its manifest; return the entries of the files.

    The dispatcher registers the checkpoint by its manifest if the report is never delivered. A failed copy is
    retried after `UPLOAD_PAUSES`, except on a full disk.

    Args:
        about: further content of the manifest, JSON-ready.
        on_chunk: as for `upload`.

    Raises:
        OSError: the last attempt failed. Copied files are removed if possible.
    """
    files, listing = sorted(folder.iterdir()), f"{uri}/{manifest.MANIFEST}"

    def write() -> list[FileEntry]:
        # After a restore of the database, an attempt is repeated whose files still exist. Until all are replaced, their
        # manifest would describe a mixture. Not `exists`, which returns false if the store fails.
        with store_errors(listing), suppress(FileNotFoundError):
            system, target = open_store(listing)
            system.rm_file(target)
        entries = [upload(file, f"{uri}/{file.name}", on_chunk) for file in files]
        content = manifest.encode({e.name: (e.size, e.sha256) for e in entries}, about)
        _write(io.BytesIO(content), listing)
        return entries

    try:
        return _retried(write, uri, UPLOAD_PAUSES)
    except OSError:
        remove_files(uri)
        raise


def remove_files(uri: str) -> None:
    """Remove a folder of unreferenced files if possible."""
    system, target = open_store(uri)
    try:
        system.rm(target, recursive=True)
    except OSError as error:  # may have the same cause as the failed copy
        logger.warning("the incomplete files of %s cannot be removed: %s", uri, error)


def download(
    uri: str,
    files: Sequence[FileEntry],
    folder: Path,
    on_chunk: Callable[[], object] = lambda: None,
) -> None:
    """Copy the files of a manifest into `folder` and check their SHA-256.

    `on_chunk` is called after each part.

    Raises:
        StoreError: a file cannot be read.
        OSError: a file differs from the registered one, or cannot be written locally.
    """
    for file in files:
        target = folder / Path(file.name).name
        with _StoreFile(f"{uri}/{file.name}", "rb") as source, open(target, "wb") as sink:
            _, sha256 = _copy(source, sink, on_chunk)
        if sha256 != file.sha256:
            raise OSError(f"{uri}/{file.name} is damaged: its sha256 is not the registered one")


def find_damage(uri: str, files: Sequence[FileEntry]) -> str | None:
    """Describe the first damaged file of a manifest, None if all are intact; a StoreError if that is unknown."""
    for file in files:
        try:
            with _StoreFile(f"{uri}/{file.name}", "rb") as source:
                _, sha256 = _copy(source)
        except StoreError as error:
            if error.errno != errno.ENOENT:
                raise
            return f"{file.name} is missing"
        if sha256 != file.sha256:
            return f"the sha256 of {file.name} is not the registered one"
    return None


def _write(
    source: BinaryIO, uri: str, on_chunk: Callable[[], None] = lambda: None
) -> tuple[int, str]:
    """Copy to a file of the store, durably; return size and sha256."""
    with _StoreFile(uri, "wb") as sink:
        size, sha256 = _copy(source, sink, on_chunk)
        sink.flush()
    return size, sha256


def _copy(
    source: BinaryIO | _StoreFile,
    sink: BinaryIO | _StoreFile | None = None,
    on_chunk: Callable[[], object] = lambda: None,
) -> tuple[int, str]:
    """Read a file, and write it to `sink`, if any; return its size and sha256."""
    digest = hashlib.sha256()
    size = 0
    while chunk := source.read(CHUNK):
        digest.update(chunk)
        size += len(chunk)
        if sink is not None:
            sink.write(chunk)
        on_chunk()
    return size, digest.hexdigest()


def exists(uri: str) -> bool:
    """Return whether the file exists; false if the store fails."""
    system, path = open_store(uri)
    return bool(system.exists(path))


def fetch(uri: str, file: Path) -> Path:
    """Copy one file of the store to a local file and return the path of the copy."""
    with _StoreFile(uri, "rb") as source, open(file, "wb") as sink:
        _copy(source, sink)
    return file
