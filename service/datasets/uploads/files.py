"""Storage of an upload until it is complete.

On a disk, chunks are appended to a hidden file, which is renamed at the end. An object store cannot append, so each chunk
is a separate object, and the objects are joined at the end. The database has the number of stored bytes: bytes beyond
it, and objects without a row, were left by a killed process.
"""

import errno
import fcntl
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from dasl_core.atomic import sync
from service.artifacts.free_space import local_folder
from service.artifacts.storage import Storage
from service.db.models import UploadChunk
from service.object_store import open_store, store_errors

_BLOCK = 4 << 20

Check = Callable[[bytes], object]
"""Called with each block before it is written, and with an empty block at the end; raises if the content is wrong."""
Write = Callable[[int, Check], Generator[None, bytes, str | None]]
"""Generator that stores the blocks sent to it durably, from an offset on; an empty block ends it.

It returns the name of the chunk's object, if it is a separate object."""
OnBlock = Callable[[bytes], object]


class Busy(Exception):
    """Another request writes to the upload."""


class Lost(Exception):
    """The store has lost bytes of an upload."""


class LocalFiles:
    """The files of an upload on a disk."""

    min_chunk = 1
    """Smallest size of every chunk except the last."""

    def __init__(self, file: Path) -> None:
        self.uri = str(file)
        """URI of the complete file, for the data set."""
        self._file, self._partial = file, file.with_name(f".{file.name}.part")

    @contextmanager
    def writer(self, start: int) -> Iterator[Write]:
        """Lock the upload against other writers.

        Args:
            start: number of bytes that are stored.

        Raises:
            Busy: another request writes.
            OSError: the store does not have these bytes, perhaps because a disk is not mounted.
        """
        if start == 0:
            self._partial.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if start == 0 else 0)
        descriptor = os.open(self._partial, flags, 0o666)
        try:
            try:
                # The kernel releases the lock even if the process is killed.
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Busy from None
            if os.fstat(descriptor).st_size < start:
                raise OSError(errno.EIO, "a part of the upload is missing", self.uri)
            yield partial(self._write, descriptor)
        finally:
            os.close(descriptor)

    def _write(self, descriptor: int, start: int, check: Check) -> Generator[None, bytes, None]:
        position = start
        try:
            while block := (yield):
                check(block)
                left = memoryview(block)
                while left:
                    written = os.pwrite(descriptor, left, position)
                    position, left = position + written, left[written:]
            check(b"")
            os.fsync(descriptor)
        except BaseException:
            # Free the space, which may be what is missing.
            with suppress(OSError):
                os.ftruncate(descriptor, start)
            raise
        if start == 0:
            for folder in list(self._partial.parents)[:3]:  # the folders that may be new
                sync(folder)

    def read(self, start: int, stop: int, chunks: Sequence[UploadChunk]) -> bytes:
        """Read stored bytes; fewer if the store has lost some.

        Args:
            chunks: the chunks of the upload that are separate objects.

        Raises:
            OSError: the store does not have these bytes, perhaps because a disk is not mounted.
        """
        try:
            file = self._partial.open("rb")
        except FileNotFoundError:
            file = self._file.open("rb")  # the upload is complete
        with file:
            file.seek(start)
            return file.read(stop - start)

    def discard(self, chunk: str | None) -> None:
        """Remove a chunk that was written but not recorded.

        Nothing is done: the next chunk replaces it, or the folder is removed with the data set.
        """

    def complete(
        self, size: int, chunks: Sequence[UploadChunk], on_block: OnBlock | None
    ) -> Iterator[None]:
        """Complete the file, step by step.

        Args:
            on_block: called with all blocks of the file in order.

        Raises:
            Lost: some bytes are missing.
            OSError: the store does not answer, is full, or is not mounted.
        """
        # A killed process may already have published the file.
        path = self._file if self._file.exists() else self._partial
        path.parent.stat()  # raises if the whole disk is not mounted
        if not path.exists() or path.stat().st_size < size:
            raise Lost
        if path == self._partial:
            os.truncate(path, size)
        if on_block is None:
            return
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                on_block(block)
                yield

    def publish(self) -> None:
        """Give the complete file its name. Idempotent."""
        if self._partial.exists() and not self._file.exists():
            os.rename(self._partial, self._file)
        sync(self._file.parent)

    def remove_chunks(self) -> None:
        """Remove the remaining chunks of a complete file."""
        self._partial.unlink(missing_ok=True)


class RemoteFiles:
    """The files of an upload in an object store, with the methods of `LocalFiles`."""

    # Limits the number of objects; 5 MiB are also the minimum of a part in S3.
    min_chunk = 5 << 20

    def __init__(self, uri: str, storage: Storage) -> None:
        self.uri = uri
        self._storage, self._chunks = storage, f"{uri.rpartition('/')[0]}/.chunks"

    @contextmanager
    def writer(self, start: int) -> Iterator[Write]:
        yield self._write  # each request writes a separate object

    def _write(self, start: int, check: Check) -> Generator[None, bytes, str]:
        chunk = f"{start:020d}-{uuid4().hex}"
        with self._open(f"{self._chunks}/{chunk}", "wb") as file:
            while block := (yield):
                check(block)
                file.write(block)
            check(b"")
        return chunk

    def read(self, start: int, stop: int, chunks: Sequence[UploadChunk]) -> bytes:
        try:
            if chunks:
                return b"".join(
                    self._cat(f"{self._chunks}/{each.name}", start - each.start, stop - each.start)
                    for each in chunks
                    if each.start < stop and start < each.stop
                )
        except FileNotFoundError:
            pass  # the chunks have been joined
        return self._cat(self.uri, start, stop)

    def discard(self, chunk: str | None) -> None:
        fs, path = open_store(f"{self._chunks}/{chunk}")
        with store_errors(self.uri):
            fs.rm_file(path)

    def complete(
        self, size: int, chunks: Sequence[UploadChunk], on_block: OnBlock | None
    ) -> Iterator[None]:
        position = 0
        with self._open(self.uri, "wb") as whole:
            for chunk in chunks:
                if chunk.start != position:
                    raise Lost
                try:
                    with self._open(f"{self._chunks}/{chunk.name}", "rb") as part:
                        while block := part.read(_BLOCK):
                            whole.write(block)
                            position += len(block)
                            if on_block is not None:
                                on_block(block)
                            yield
                except FileNotFoundError:
                    raise Lost from None
                if position != chunk.stop:
                    raise Lost
            if position != size:
                raise Lost

    def publish(self) -> None:
        """Do nothing: an object appears atomically."""

    def remove_chunks(self) -> None:
        self._storage.remove(self._chunks)

    def _cat(self, uri: str, start: int, stop: int) -> bytes:
        fs, path = open_store(uri)
        content: bytes = fs.cat_file(path, max(0, start), min(stop, fs.info(path)["size"]))
        return content

    @contextmanager
    def _open(self, uri: str, mode: str) -> Iterator[Any]:
        fs, path = open_store(uri)
        if mode == "wb":
            fs.makedirs(os.path.dirname(path), exist_ok=True)
        with fs.open(path, mode) as file:
            yield file


UploadFiles = LocalFiles | RemoteFiles


def upload_files(storage: Storage, dataset_id: str, filename: str) -> UploadFiles:
    """Return the files of an upload in the artifact store."""
    uri = f"{storage.dataset_uri(dataset_id)}/upload/{filename}"
    if (file := local_folder(uri)) is not None:
        return LocalFiles(file)
    return RemoteFiles(uri, storage)


def is_full(error: OSError) -> bool:
    """Whether a disk, or the quota on it, is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)
