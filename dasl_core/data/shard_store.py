"""Shared store of shards: a mounted folder or a prefix of an object store."""

import errno
import fcntl
import io
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from dasl_core.atomic import sync
from dasl_core.spec.source import remote_scheme
from dasl_core.storage import RemoteStorage, open_system, os_errors

VARIABLE = "DASL_SHARDS_URI"
# Seconds without a write after which a copy is abandoned, in folders without locks.
_ABANDONED_SECONDS = 3600.0
MANIFEST = "manifest.json"
"""File that describes all shards of a set."""
USED = "used"
"""File with the time at which a set of shards was last used."""
_SET = re.compile("[0-9a-f]{32}")
_PARTIAL = ".*.partial"
_FILE = re.compile(rf"{re.escape(MANIFEST)}|{USED}|\d{{5,}}\.shard")


class FolderStore:
    """The files of a set of shards, by name, in a folder such as of NFS.

    Writes are atomic; the last of two writers of the same name wins.

    Raises:
        OSError: (all methods) the store cannot be read or written. FileNotFoundError: there is no such file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def _create_folder(self) -> None:
        # Only of this account, as in the caches: decoded images lie there.
        self._path.mkdir(0o700, parents=True, exist_ok=True)

    def sizes(self) -> dict[str, int]:
        """Return the size of each file."""
        self._create_folder()
        with os.scandir(self._path) as entries:
            return {
                file.name: file.stat().st_size for file in entries if not file.name.startswith(".")
            }

    def read(self, name: str, begin: int, length: int) -> bytes:
        """Read a part of a file."""
        with open(self._path / name, "rb", buffering=0) as file:
            return os.pread(file.fileno(), length, begin)

    def put(self, name: str, file: Path) -> None:
        """Copy a file of this machine to the store."""
        with open(file, "rb") as source:
            self._put(name, source)

    def write(self, name: str, content: bytes) -> None:
        """Write a small file."""
        self._put(name, io.BytesIO(content))

    def _put(self, name: str, source: IO[bytes]) -> None:
        self._create_folder()
        partial = self._path / f".{name}.{uuid.uuid4().hex}.partial"
        try:
            with open(partial, "wb") as target:
                with suppress(OSError):  # without locks, the time of the last write decides
                    fcntl.flock(target, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.copyfileobj(source, target, 1 << 20)
                target.flush()
                os.fsync(target.fileno())
                partial.replace(self._path / name)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        sync(self._path)

    def remove_abandoned(self) -> None:
        """Remove partial files of killed writers."""
        partial_files = list(self._path.glob(_PARTIAL))
        if not partial_files:
            return
        # By the file server's clock, which sets all of these times.
        with tempfile.TemporaryFile(dir=self._path) as now:
            now.write(b"now")
            now.flush()
            os.fsync(now.fileno())
            before = os.fstat(now.fileno()).st_mtime - _ABANDONED_SECONDS
        for file in partial_files:
            with suppress(FileNotFoundError):  # completed or removed by another node
                _remove_partial(file, before)

    def remove_all(self) -> None:
        """Remove the set: the manifest first and `USED` last, and no file of another kind."""
        for file in self._path.glob(_PARTIAL):
            file.unlink(missing_ok=True)
        for name in _removal_order(self.sizes()):
            (self._path / name).unlink(missing_ok=True)
        with suppress(OSError):  # it has other files
            self._path.rmdir()


class ObjectStore:
    """A prefix of an object store, through fsspec; methods as of `FolderStore`."""

    def __init__(self, uri: str) -> None:
        self._storage = RemoteStorage(uri)
        self._system, self._root = self._storage.system

    def sizes(self) -> dict[str, int]:
        try:
            return {file.path: file.size for file in self._storage.files()}
        except FileNotFoundError:
            return {}

    def read(self, name: str, begin: int, length: int) -> bytes:
        return self._storage.read(name, begin, length) if length else b""

    def put(self, name: str, file: Path) -> None:
        with os_errors(name):
            self._system.put_file(str(file), f"{self._root}/{name}")

    def write(self, name: str, content: bytes) -> None:
        with os_errors(name):
            self._system.pipe_file(f"{self._root}/{name}", content)

    def remove_abandoned(self) -> None:
        """Do nothing: an incomplete object does not exist."""

    def remove_all(self) -> None:
        for name in _removal_order(self.sizes()):
            with os_errors(name), suppress(FileNotFoundError):
                self._system.rm_file(f"{self._root}/{name}")


ShardStore = FolderStore | ObjectStore


def _remove_partial(file: Path, before: float) -> None:
    """Remove a partial file without a write since `before` and without a lock."""
    with open(file, "ab") as partial:
        if os.fstat(partial.fileno()).st_mtime >= before:
            return
        try:
            fcntl.flock(partial, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return  # it is being written
        file.unlink()


def _removal_order(names: Iterable[str]) -> list[str]:
    """Return the names of shard files, the manifest first and `USED` last."""
    order = {MANIFEST: 0, USED: 2}
    return sorted(
        (name for name in names if _FILE.fullmatch(name)),
        key=lambda name: (order.get(name, 1), name),
    )


def shared_store(name: str) -> ShardStore | None:
    """Open the folder `name` of DASL_SHARDS_URI; None if it is not set.

    Raises:
        ValueError: a package is missing, or it is neither a valid URI nor an absolute path.
    """
    uri = _shared_uri()
    if not uri:
        return None
    if remote_scheme(uri) is not None:
        return ObjectStore(f"{uri}/{name}")
    return FolderStore(Path(uri) / name)


def shared_sets() -> list[str]:
    """List the sets of shards in DASL_SHARDS_URI; an OSError if the store cannot be read."""
    uri = _shared_uri()
    if not uri:
        return []
    try:
        if remote_scheme(uri) is None:
            names = os.listdir(uri)
        else:
            system, root = open_system(uri)
            with os_errors(root):
                paths = system.ls(root, detail=False)
            names = [str(path).rstrip("/").rpartition("/")[2] for path in paths]
    except FileNotFoundError:  # nothing was written yet
        return []
    return sorted(name for name in names if _SET.fullmatch(name))


def _shared_uri() -> str:
    uri = os.environ.get(VARIABLE, "").rstrip("/")
    if uri and remote_scheme(uri) is None and not os.path.isabs(uri):
        raise ValueError(
            f"{VARIABLE} must be an absolute path or a URI such as s3://bucket/shards; given {uri!r}"
        )
    return uri


def copy_to(
    store: ShardStore, name: str, size: int, target: IO[bytes], chunk: int
) -> Iterator[int]:
    """Copy a file of a store to an open file in parts; yield the size of each part after writing it."""
    for begin in range(0, size, chunk):
        part = memoryview(store.read(name, begin, min(chunk, size - begin)))
        if not part:
            raise OSError(errno.EIO, "the file is shorter than it was", name)
        length = len(part)
        while part:
            part = part[target.write(part) :]
        yield length
