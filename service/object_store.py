"""S3 as a file system of fsspec, on obstore, and the file systems of artifact stores.

obstore reads the region, the endpoint and the credentials from the standard `AWS_*` variables.
"""

from __future__ import annotations

import errno
import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import fsspec
import obstore
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from obstore.exceptions import BaseError
from obstore.store import S3Store

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import S3Config

# A download holds about two blocks in memory, an upload `_WRITERS` parts.
_READ_BLOCK = 4 << 20
_PART = 8 << 20
_WRITERS = 3
# Callers handle longer outages, because a request of the API must not wait for minutes.
_RETRY = timedelta(seconds=10)
_CODE = re.compile("<Code>(.*?)</Code>(?:<Message>(.*?)</Message>)?", re.DOTALL)


class StoreError(OSError):
    """An artifact store cannot be reached, or refused a request."""


def open_store(uri: str) -> tuple[Any, str]:
    """Return the file system of a URI, and the path in it."""
    fs, path = fsspec.core.url_to_fs(uri)
    return fs, str(path)


@contextmanager
def store_errors(uri: str) -> Iterator[None]:
    """Raise the errors of any kind of store as `StoreError`, with the `errno` of their cause."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise StoreError(error.errno or errno.EIO, reason, error.filename or uri) from None


def signed_url(uri: str, lifetime: timedelta, endpoint: str = "") -> str:
    """Return a URL by which anyone can GET an object for some time.

    Args:
        uri: the object, `s3://bucket/key`.
        endpoint: endpoint of the store for clients; empty: the same as for this process.
    """
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    with _os_errors(uri):
        return obstore.sign(_store(bucket, endpoint), "GET", key, lifetime)


class S3FileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """S3 and compatible stores, without caches of listings."""

    protocol = "s3"

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """List a folder; `FileNotFoundError` if nothing is below it."""
        bucket, key = self._split(path)
        with _os_errors(path):
            result = _store(bucket).list_with_delimiter(key or None)
        entries = [
            _about(f"{bucket}/{entry['path']}", entry)
            for entry in result["objects"]
            if entry["path"] != key  # some stores and tools mark a folder with an empty object
        ]
        entries += [
            {"name": f"{bucket}/{prefix}", "size": 0, "type": "directory"}
            for prefix in result["common_prefixes"]
        ]
        if not entries:
            raise FileNotFoundError(errno.ENOENT, "No such object or folder", path)
        return entries if detail else [entry["name"] for entry in entries]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Describe an object or a folder."""
        bucket, key = self._split(path)
        if key:
            try:
                with _os_errors(path):
                    return _about(f"{bucket}/{key}", _store(bucket).head(key))
            except FileNotFoundError:
                pass
        self.ls(path)
        return {"name": f"{bucket}/{key}".rstrip("/"), "size": 0, "type": "directory"}

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        """Read an object, or its bytes from `start` to `end` (exclusive)."""
        bucket, key = self._split(path)
        with _os_errors(path):
            if start is None and end is None:
                return _store(bucket).get(key).bytes().to_bytes()
            if end is None:
                end = int(_store(bucket).head(key)["size"])
            if end <= (start := start or 0):
                return b""
            return _store(bucket).get_range(key, start=start, end=end).to_bytes()

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        """Write an object in one step."""
        bucket, key = self._split(path)
        with _os_errors(path):
            _store(bucket).put(key, value)

    def rm_file(self, path: str) -> None:
        """Remove an object, if it exists."""
        bucket, key = self._split(path)
        with _os_errors(path):
            _store(bucket).delete(key)

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove an object; with `recursive`, everything below a folder, up to 1000 in one request."""
        bucket, key = self._split(path)
        if not recursive:
            self.rm_file(path)
            return
        assert key, "a whole bucket is never removed"
        removed = False
        with _os_errors(path):
            for entries in _store(bucket).list(key, chunk_size=1000):
                _store(bucket).delete([entry["path"] for entry in entries])
                removed = removed or bool(entries)
        if not removed:
            self.info(path)  # raises FileNotFoundError if there is no object of that name
            self.rm_file(path)

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Do nothing: a folder exists while an object is below it."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Do nothing, like `mkdir`."""

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        if mode == "wb":
            return _Writer(*self._split(path))
        if mode != "rb":
            raise ValueError(f"S3 has no mode {mode!r}: objects are read or written as a whole")
        return _Reader(self, path, block_size=_READ_BLOCK)

    def _split(self, path: str) -> tuple[str, str]:
        bucket, _, key = self._strip_protocol(path).partition("/")
        return bucket, key


def _about(path: str, entry: ObjectMeta) -> dict[str, Any]:
    """Describe an object with the names of `s3fs`; a refresh compares the ETag."""
    return {
        "name": path,
        "size": entry["size"],
        "type": "file",
        "ETag": entry["e_tag"],
        "LastModified": entry["last_modified"],
    }


class _Reader(AbstractBufferedFile):  # type: ignore[misc]  # fsspec has no types
    """An object that is read in blocks."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        content: bytes = self.fs.cat_file(self.path, start, end)
        return content


class _Writer(io.RawIOBase):
    """An object that is written; it exists once the file is closed without an error."""

    def __init__(self, bucket: str, key: str) -> None:
        self._path = f"{bucket}/{key}"
        self._file: Any = obstore.open_writer(
            _store(bucket), key, buffer_size=_PART, max_concurrency=_WRITERS
        )

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        try:
            with _os_errors(self._path):
                self._file.write(bytes(data))
        except OSError:
            self._file = None  # an incomplete object must not be stored by `close`
            raise
        return len(data)

    def close(self) -> None:
        file, self._file = self._file, None
        try:
            if file is not None:
                with _os_errors(self._path):
                    file.close()
        finally:
            super().close()

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is not None:
            self._file = None
        self.close()

    def __del__(self) -> None:
        self._file = None  # only an explicit `close` stores the object


@lru_cache(maxsize=16)
def _store(bucket: str, endpoint: str = "") -> S3Store:
    """Return the client of a bucket, shared by all threads."""
    config: S3Config = {"endpoint": endpoint} if endpoint else {}
    endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL", "")
    try:
        return S3Store(
            bucket,
            config=config,
            client_options={
                "allow_http": endpoint.startswith("http://"),
                "connect_timeout": "5s",
                "timeout": "60s",
            },
            retry_config={
                "max_retries": 100,  # `retry_timeout` ends them
                "retry_timeout": _RETRY,
                "backoff": {
                    "init_backoff": timedelta(seconds=0.1),
                    "max_backoff": timedelta(seconds=2),
                    "base": 2,
                },
            },
        )
    except BaseError as error:
        raise StoreError(errno.EIO, _first_line(error), f"s3://{bucket}") from None


@contextmanager
def _os_errors(path: str) -> Iterator[None]:
    """Raise obstore's errors as `FileNotFoundError` or `StoreError` with a message of one line."""
    try:
        yield
    except FileNotFoundError as error:
        if "NoSuchBucket" in str(error):
            raise StoreError(errno.EIO, _first_line(error), path) from None
        raise FileNotFoundError(errno.ENOENT, "No such object", path) from None
    except BaseError as error:
        raise StoreError(errno.EIO, _first_line(error), path) from None


def _first_line(error: Exception) -> str:
    text = str(error)
    if (code := _CODE.search(text)) is not None:
        return f"the object store answered {code[1]}: {code[2] or ''}".removesuffix(": ")
    line = text.partition("\n")[0]
    if "403 Forbidden" in line or "401 Unauthorized" in line:
        return "the object store refused the credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"
    return line


# Not an entry point of the package, which would change `s3://` for all other programs in the environment.
fsspec.register_implementation(S3FileSystem.protocol, S3FileSystem, clobber=True)
