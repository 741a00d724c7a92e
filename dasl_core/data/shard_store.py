"""Where nodes share shards: a folder that all of them mount, or a prefix of an object store."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Protocol

from dasl_core.atomic import sync
from dasl_core.data.sources.storage import open_system
from dasl_core.spec.source import remote_scheme

VARIABLE = "DASL_SHARDS_URI"
# A copy that nothing was written to for so long has no writer any more.
_ABANDONED_SECONDS = 3600.0


class ShardStore(Protocol):
    """Files by name. Each appears at once and whole; of two writers of the same name, the last one wins.

    Raises:
        OSError: (all methods) the store cannot be read or written. FileNotFoundError: there is no such file.
    """

    def sizes(self) -> dict[str, int]:
        """Return the size of each file."""
        ...

    def read(self, name: str, begin: int, length: int) -> bytes:
        """Read a part of a file."""
        ...

    def put(self, name: str, file: Path) -> None:
        """Copy a file of this machine to the store."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Write a small file."""
        ...


class FolderStore:
    """A folder, such as of NFS."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def sizes(self) -> dict[str, int]:
        self._path.mkdir(parents=True, exist_ok=True)
        with os.scandir(self._path) as entries:
            return {
                each.name: each.stat().st_size for each in entries if not each.name.startswith(".")
            }

    def read(self, name: str, begin: int, length: int) -> bytes:
        with open(self._path / name, "rb", buffering=0) as file:
            return os.pread(file.fileno(), length, begin)

    def put(self, name: str, file: Path) -> None:
        # Writers on several machines may have the same process number.
        partial = self._path / f".{name}.{socket.gethostname()}.{os.getpid()}.partial"
        try:
            shutil.copyfile(file, partial)
            sync(partial)
            self._remove_older(name, partial.stat().st_mtime)
            partial.replace(self._path / name)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        sync(self._path)

    def _remove_older(self, name: str, now: float) -> None:
        """Remove what killed writers of a file have left. Of the same server, so its clock does not matter."""
        for left in self._path.glob(f".{name}.*.partial"):
            with suppress(FileNotFoundError):  # another node has completed or removed it
                if left.stat().st_mtime < now - _ABANDONED_SECONDS:
                    left.unlink()

    def write(self, name: str, content: bytes) -> None:
        with tempfile.NamedTemporaryFile(prefix="dasl-") as file:
            file.write(content)
            file.flush()
            self.put(name, Path(file.name))


class ObjectStore:
    """A prefix of an object store, through fsspec."""

    def __init__(self, uri: str) -> None:
        self._system, self._root = open_system(uri)

    def sizes(self) -> dict[str, int]:
        with _os_errors(self._root):
            try:
                found: dict[str, Any] = self._system.find(self._root, detail=True)
            except FileNotFoundError:
                return {}
        return {name.rpartition("/")[2]: int(info["size"]) for name, info in found.items()}

    def read(self, name: str, begin: int, length: int) -> bytes:
        if not length:
            return b""
        with _os_errors(name):
            content: bytes = self._system.cat_file(
                f"{self._root}/{name}", start=begin, end=begin + length
            )
        return content

    def put(self, name: str, file: Path) -> None:
        with _os_errors(name):
            self._system.put_file(str(file), f"{self._root}/{name}")

    def write(self, name: str, content: bytes) -> None:
        with _os_errors(name):
            self._system.pipe_file(f"{self._root}/{name}", content)


def shared_store(name: str) -> ShardStore | None:
    """Return the folder `name` of the place that DASL_SHARDS_URI names; None if it is not set.

    Raises:
        ValueError: a package is missing, or it is neither a valid URI nor an absolute path.
    """
    uri = os.environ.get(VARIABLE, "").rstrip("/")
    if not uri:
        return None
    if remote_scheme(uri) is not None:
        return ObjectStore(f"{uri}/{name}")
    if not os.path.isabs(uri):
        raise ValueError(
            f"{VARIABLE} must be an absolute path or a URI such as s3://bucket/shards; given {uri!r}"
        )
    return FolderStore(Path(uri) / name)


def copy_to(
    store: ShardStore, name: str, size: int, target: IO[bytes], chunk: int
) -> Iterator[int]:
    """Copy a file of a store to an open one in parts; yield the size of each after it was written."""
    for begin in range(0, size, chunk):
        part = memoryview(store.read(name, begin, min(chunk, size - begin)))
        if not part:
            raise OSError(errno.EIO, "the file is shorter than it was", name)
        length = len(part)
        while part:
            part = part[target.write(part) :]
        yield length


@contextmanager
def _os_errors(name: str) -> Iterator[None]:
    """Raise what a store of any kind raises as an OSError."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:  # obstore's are no OSErrors, and other packages' their own
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise OSError(errno.EIO, reason, name) from error
