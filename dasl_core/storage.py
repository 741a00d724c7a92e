"""Access to local files and object stores: list, open, and read in part."""

import errno
import hashlib
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Literal, NamedTuple

from dasl_core.spec.locations import CONTAINS_PRIVATE, EVERY_FOLDER, OUTSIDE, ReadableFolders
from dasl_core.spec.source import remote_scheme
from dasl_core.text import printable
from dasl_core.vocabulary import is_hidden

# Enough for nearly every header: most are in the first few KiB, some after an embedded preview.
_FIRST_READ = 64 << 10
_READ = 1 << 20
# What to do about a link that leads out of the folder.
FOLLOW_LINKS = "; --follow-links reads such links"


class File(NamedTuple):
    """A file in a storage.

    Attributes:
        path: relative to the storage, with forward slashes.
        stamp: as in `Entry`.
        reason: why it cannot be read; None if it can.
    """

    path: str
    size: int
    stamp: int
    reason: str | None = None


class LocalStorage:
    """A local folder.

    Raises:
        OSError: (all methods) the folder or file does not exist, or cannot be read.

    Args:
        root: the folder, with links resolved. If it becomes a link later, that is not followed.
        links: as in `SourceOptions`. Checked at each opening, because a file may have become a link since ingest.
        allowed: folders that may be read. Each link is checked, and each file where links are followed; otherwise
            `check_tree` must have checked the whole folder, or the caller each file.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        links: Literal["inside", "follow"] = "inside",
        allowed: ReadableFolders = EVERY_FOLDER,
    ) -> None:
        self.root = Path(root)
        self.uri = str(self.root)
        self.links, self.allowed = links, allowed

    def files(self, *, nested: bool = True) -> Iterator[File]:
        """Yield all files that are not hidden, if `nested` also those in subfolders, in no particular order."""
        # Iterative, since folders can be nested deeper than Python's stack.
        pending, seen = [""], {self.root}
        os.listdir(self.root)  # raises for the folder itself
        while pending:
            folder = pending.pop()
            try:
                with os.scandir(self.root / folder) as scan:
                    entries = list(scan)
            except OSError as error:
                reason = f"the folder cannot be read: {error.strerror or error}"
                yield File(folder, 0, 0, reason)
                continue
            for entry in entries:
                if is_hidden(entry.name):
                    continue
                path = f"{folder}/{entry.name}" if folder else entry.name
                file = self._examine(entry, path, seen)
                if file is not None:
                    yield file
                elif nested:
                    pending.append(path)

    def _examine(self, entry: os.DirEntry[str], path: str, seen: set[Path]) -> File | None:
        """Describe an entry of a folder; None for a subfolder to walk."""
        try:
            entry.name.encode()
        except UnicodeEncodeError:
            return File(printable(path), 0, 0, "its name is not valid UTF-8")
        try:
            if entry.is_symlink():
                target = Path(os.path.realpath(entry.path, strict=True))
                self._check(target)
                if target.is_dir():
                    if self.links == "inside":
                        raise ValueError(
                            "it is a link to a folder, and such links are not followed"
                        )
                    if target in seen or not self.allowed.allow_tree(target):
                        raise ValueError(
                            "it is a link to a folder that is read already, or may not be read"
                        )
                    seen.add(target)
                    return None
            status = entry.stat()
            if stat.S_ISDIR(status.st_mode):
                return None
            # Reading anything else, such as a pipe, could block forever.
            if not stat.S_ISREG(status.st_mode):
                raise ValueError("it is not a regular file")
        except FileNotFoundError:
            return File(path, 0, 0, "it is a link to something that does not exist")
        except (OSError, RuntimeError) as error:
            reason = f"it cannot be read: {getattr(error, 'strerror', None) or error}"
            return File(path, 0, 0, reason)
        except ValueError as error:
            return File(path, 0, 0, str(error))
        return File(path, status.st_size, _file_stamp(status))

    def _check(self, target: Path) -> None:
        """Raise a ValueError with the reason if a file, with links resolved, may not be read."""
        if self.links == "inside" and not target.is_relative_to(self.root):
            raise ValueError(f"it is a link that leads out of the data set's folder{FOLLOW_LINKS}")
        # A hidden folder inside, which is not listed, may be the service's own.
        if not self.allowed.allow(target):
            raise ValueError(f"it {OUTSIDE}")

    def resolve(self, path: str) -> Path:
        """Return the path of a file, with links resolved; a ValueError with the reason if it may not be read."""
        place = self.root / path
        target = Path(os.path.realpath(place))
        if self.links == "follow" or target != place:
            self._check(target)
        return target

    def info(self, path: str) -> File:
        status = os.stat(self.resolve(path))
        return File(path, status.st_size, _file_stamp(status))

    def open(self, path: str, size: int = -1) -> BinaryIO:
        """Open a file for reading; seekable.

        Args:
            size: size of the file if known, which saves a request to an object store.

        Raises:
            ValueError: it may not be read; the message is the reason.
        """
        file = open(self.resolve(path), "rb", opener=_open_without_waiting)  # noqa: SIM115
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.close()
            raise ValueError("it is not a regular file")
        return file

    def read(self, path: str, start: int, length: int) -> bytes:
        """Read a part of a file; shorter at its end. Raises as `open`."""
        with self.open(path) as file:
            file.seek(start)
            return file.read(length)


class RemoteStorage:
    """A prefix of an object store, through fsspec; methods as of `LocalStorage`.

    Args:
        uri: such as ``s3://bucket/folder``; a trailing slash is not needed.

    Raises:
        ValueError: a package is missing, or the URI is not valid; the message is a sentence.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")

    @cached_property
    def system(self) -> tuple[Any, str]:
        """The fsspec file system, and the path of the prefix in it."""
        return open_system(self.uri)

    def _path(self, path: str) -> str:
        if not is_inside(path):
            raise ValueError(f"it {OUTSIDE}")
        return f"{self.system[1]}/{path}"

    def files(self, *, nested: bool = True) -> Iterator[File]:
        system, root = self.system
        with os_errors(self.uri):
            objects = system.find(root, maxdepth=None if nested else 1, detail=True)
        if not objects:
            raise FileNotFoundError(errno.ENOENT, "there is no such object or prefix", self.uri)
        for name, info in objects.items():
            path = str(name).removeprefix(root).lstrip("/")
            if path and not is_hidden(path):
                yield _remote_file(path, info)

    def info(self, path: str) -> File:
        system, place = self.system[0], self._path(path)
        with os_errors(path):
            return _remote_file(path, system.info(place))

    def open(self, path: str, size: int = -1) -> BinaryIO:
        return open_part(self, path, 0, self.info(path).size if size < 0 else size)

    def read(self, path: str, start: int, length: int) -> bytes:
        system, place = self.system[0], self._path(path)
        with os_errors(path):
            content: bytes = system.cat_file(place, start=start, end=start + length)
        return content


Storage = LocalStorage | RemoteStorage


def one_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type if it has none."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


@contextmanager
def os_errors(name: str) -> Iterator[None]:
    """Context manager that converts the errors of any store to OSError."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:  # obstore and other packages raise their own types
        raise OSError(errno.EIO, one_line(error), name) from error


def open_part(storage: Storage, path: str, begin: int, size: int) -> BinaryIO:
    """Open a seekable part of a file that is read lazily."""
    return io.BufferedReader(_Ranges(storage, path, begin, size), _FIRST_READ)


class _Ranges(io.RawIOBase):
    """A part of a file, read in ranges: a small one first, which often suffices, then larger ones."""

    def __init__(self, storage: Storage, path: str, begin: int, size: int) -> None:
        self.name = path  # as files have; pydicom reads it
        self._storage, self._path, self._begin, self._size = storage, path, begin, size
        self._position, self._start, self._block = 0, 0, b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        remaining = self._size - self._position
        if remaining <= 0:
            return 0
        begin = self._position - self._start
        if not 0 <= begin < len(self._block):
            continues = self._block and begin == len(self._block)
            length = min(remaining, _READ if continues else _FIRST_READ)
            self._block = self._storage.read(self._path, self._begin + self._position, length)
            self._start, begin = self._position, 0
            if not self._block:
                raise OSError(errno.EIO, "the file is shorter than when it was opened", self._path)
        part = self._block[begin : begin + len(buffer)]
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)


def open_system(uri: str) -> tuple[Any, str]:
    """Return a URI's fsspec file system, and the path in it; a ValueError if it is invalid, or a package missing."""
    scheme = remote_scheme(uri)
    assert scheme is not None, "it is no path"
    try:
        import fsspec
        from fsspec.registry import registry

        if scheme == "s3" and "s3" not in registry:
            # By default fsspec needs s3fs, whose dependencies conflict with others.
            from obstore.fsspec import register

            register("s3")
        options: dict[str, Any] = {}
        if fsspec.get_filesystem_class(scheme).__module__.startswith("obstore"):
            endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
            options = {"client_options": {"allow_http": endpoint.startswith("http://")}}
        system, path = fsspec.core.url_to_fs(uri, **options)
    except ImportError as error:
        raise ValueError(
            f"{scheme}:// needs a package that is not installed ({error}); install dasl[s3]"
        ) from error
    return system, str(path).rstrip("/")


def open_storage(
    uri: str,
    links: Literal["inside", "follow"] = "inside",
    allowed: ReadableFolders = EVERY_FOLDER,
) -> Storage:
    """Open the storage of a folder's path or URI; a ValueError if it may not be read, or has an unknown scheme."""
    check_location(uri, allowed)
    if remote_scheme(uri) is not None:
        return RemoteStorage(uri)
    return LocalStorage(uri, links, allowed)


def check_location(uri: str, allowed: ReadableFolders) -> None:
    """Raise a ValueError with a sentence if a path or URI may not be read, before revealing whether it exists."""
    is_remote = remote_scheme(uri) is not None
    if not (allowed.allow_uri(uri) if is_remote else allowed.allow(uri)):
        raise ValueError(f"{uri} {OUTSIDE}")


def check_tree(uri: str, allowed: ReadableFolders) -> None:
    """Raise a ValueError if a local folder contains one that may not be read; `check_location` suffices for URIs."""
    if remote_scheme(uri) is None and not allowed.allow_tree(uri):
        raise ValueError(f"{uri} {CONTAINS_PRIVATE}")


def _open_without_waiting(path: str, flags: int) -> int:
    # Otherwise a file that became a pipe since ingest would block forever.
    return os.open(path, flags | os.O_NONBLOCK)


def _file_stamp(status: os.stat_result) -> int:
    # mtime can be set, and copies and unpacked archives often keep it; ctime cannot, and changes with permissions: a
    # file that becomes readable is another entry. Inode numbers of FUSE file systems change with each mount.
    return _stamp(f"{status.st_mtime_ns} {status.st_ctime_ns} {stat.S_IMODE(status.st_mode)}")


def _stamp(facts: str) -> int:
    return int.from_bytes(hashlib.blake2b(facts.encode(), digest_size=7).digest(), "little")


def _remote_file(path: str, info: dict[str, Any]) -> File:
    """Describe an object by its ETag, or else its time of change, under each store's names for them."""
    facts = (
        info.get(name)
        for name in ("ETag", "e_tag", "etag", "LastModified", "last_modified", "mtime")
    )
    known = next((fact for fact in facts if fact is not None), info.get("size"))
    return File(path, int(info.get("size") or 0), _stamp(str(known)))


def is_inside(path: str) -> bool:
    """Whether the name of an archive's entry stays inside a folder."""
    parts = PurePosixPath(path)
    return not parts.is_absolute() and ".." not in parts.parts
