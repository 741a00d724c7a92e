"""Transfer of files to and from the artifact store, through fsspec."""

import errno
import hashlib
import io
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from fsspec.implementations.local import LocalFileSystem

from dasl_core import manifest
from service.object_store import open_store
from service.protocol import FileEntry

logger = logging.getLogger(__name__)

CHUNK = 1 << 20
# Pauses in seconds before a failed copy is retried.
UPLOAD_PAUSES = (1.0, 2.0)

T = TypeVar("T")


def upload(file: Path, uri: str, on_chunk: Callable[[], None] = lambda: None) -> FileEntry:
    """Copy one file to `uri` and return its manifest entry. `on_chunk` is called after each part."""
    with open(file, "rb") as source:
        size, sha256 = _write(source, uri, on_chunk)
    return FileEntry(name=file.name, size=size, sha256=sha256)


def retried(write: Callable[[], T], uri: str, pauses: Sequence[float]) -> T:
    """Write to the store with `write`, which may be repeated; retry after each pause in seconds.

    Raises:
        OSError: the last try failed, or a disk is full.
    """
    for pause in pauses:
        try:
            return write()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise  # waiting makes no room
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

    The dispatcher registers the checkpoint by its manifest if the report of it is never delivered. A
    failed copy is retried after `UPLOAD_PAUSES`; on a full disk it is not.

    Args:
        about: what the manifest contains besides the files, JSON-ready.
        on_chunk: as for `upload`.

    Raises:
        OSError: the last try failed. The files that were copied are removed, if that is possible.
    """
    files = sorted(folder.iterdir())

    def write() -> list[FileEntry]:
        _remove_manifest(uri)
        entries = [upload(file, f"{uri}/{file.name}", on_chunk) for file in files]
        content = manifest.encode({e.name: (e.size, e.sha256) for e in entries}, about)
        _write(io.BytesIO(content), f"{uri}/{manifest.MANIFEST}")
        return entries

    try:
        return retried(write, uri, UPLOAD_PAUSES)
    except OSError:
        _remove(uri)
        raise


def _remove_manifest(uri: str) -> None:
    """Remove the manifest of files that are about to be replaced: it would describe a mixture of both.

    A restored database repeats an attempt whose files are still there.
    """
    system, target = open_store(f"{uri}/{manifest.MANIFEST}")
    # Not `exists`, which answers no if the store fails.
    with suppress(FileNotFoundError):
        system.rm_file(target)


def _remove(uri: str) -> None:
    system, target = open_store(uri)
    try:
        system.rm(target, recursive=True)
    except OSError as error:  # the cause of the failed copy may make this fail too
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
        OSError: a file is missing or differs from the registered one.
    """
    for file in files:
        target = folder / Path(file.name).name
        with _reading(f"{uri}/{file.name}") as source, open(target, "wb") as sink:
            _, sha256 = _copy(source, sink, on_chunk)
        if sha256 != file.sha256:
            raise OSError(f"{uri}/{file.name} is damaged: its sha256 is not the registered one")


def find_damage(uri: str, files: Sequence[FileEntry]) -> str | None:
    """Return a description of the first damaged file of a manifest; `None` if all are intact.

    Raises:
        OSError: the store cannot be read, so the state of the files is unknown.
    """
    for file in files:
        try:
            with _reading(f"{uri}/{file.name}") as source:
                _, sha256 = _copy(source)
        except FileNotFoundError:
            return f"{file.name} is missing"
        if sha256 != file.sha256:
            return f"the sha256 of {file.name} is not the registered one"
    return None


def _write(
    source: BinaryIO, uri: str, on_chunk: Callable[[], None] = lambda: None
) -> tuple[int, str]:
    """Copy to a file of the store, durably; return size and sha256."""
    system, target = open_store(uri)
    system.makedirs(os.path.dirname(target), exist_ok=True)
    with system.open(target, "wb") as sink:
        size, sha256 = _copy(source, sink, on_chunk)
        sink.flush()
        if isinstance(system, LocalFileSystem):  # a registered file must survive a power loss
            os.fsync(sink.fileno())
    return size, sha256


def _reading(uri: str) -> Any:
    system, path = open_store(uri)
    return system.open(path, "rb")


def _copy(
    source: BinaryIO, sink: BinaryIO | None = None, on_chunk: Callable[[], object] = lambda: None
) -> tuple[int, str]:
    """Read a file, and write it to `sink` if there is one; return its size and sha256."""
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
    """Return whether the file exists."""
    system, path = open_store(uri)
    return bool(system.exists(path))


def fetch(uri: str, file: Path) -> Path:
    """Copy one file of the store to a local file and return the path of the copy."""
    with _reading(uri) as source, open(file, "wb") as sink:
        shutil.copyfileobj(source, sink, CHUNK)
    return file
