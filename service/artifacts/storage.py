"""The artifact store (checkpoints, logs, plots), on any file system that fsspec supports."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast
from uuid import uuid4

import fsspec

_BLOCK = 1 << 20
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\]")


class Storage:
    """The artifacts below one root URI."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/")

    def attempt_uri(self, job_id: str, number: int) -> str:
        """The folder that one attempt writes, and no other."""
        return f"{self.root}/jobs/{job_id}/attempts/{number}"

    def log_uri(self, job_id: str, number: int) -> str:
        """The first part of an attempt's log; `AttemptLog` reads and writes all parts."""
        return f"{self.attempt_uri(job_id, number)}/driver.log"

    def checkpoints_uri(self, job_id: str, number: int) -> str:
        """The folder of an attempt's checkpoints, each in a folder of its own."""
        return f"{self.attempt_uri(job_id, number)}/checkpoints"

    def dataset_uri(self, dataset_id: str) -> str:
        """The folder of a data set's index."""
        return f"{self.root}/datasets/{dataset_id}"

    def size(self, uri: str) -> int | None:
        """Bytes of a file, or `None` if there is none."""
        fs, path = self._open_store(uri)
        try:
            # A cached listing would give an old size: logs grow while they are read.
            fs.invalidate_cache()
            return int(fs.info(path)["size"])
        except FileNotFoundError:
            return None

    def read(self, uri: str, start: int, stop: int) -> Iterator[bytes]:
        """The bytes `start` to `stop` (exclusive) of a file, in blocks."""
        fs, path = self._open_store(uri)
        with fs.open(path, "rb") as file:
            file.seek(start)
            left = stop - start
            while left > 0:
                block = cast(bytes, file.read(min(_BLOCK, left)))
                if not block:
                    return
                left -= len(block)
                yield block

    def try_to_write(self) -> None:
        """Write a small file below the root and remove it.

        Raises:
            ValueError: it cannot be made.
        """
        try:
            fs, path = self._open_store(f"{self.root}/.written-{uuid4().hex}")
            fs.makedirs(fs._parent(path), exist_ok=True)
            fs.pipe_file(path, b"dasl")
            fs.rm_file(path)
        except Exception as error:  # each kind of store raises its own errors
            said = f"{type(error).__name__}: {error}"
            # The URI may contain a password.
            shown = re.sub("//[^/@]*@", "//***@", self.root)
            raise ValueError(f"{shown} (DASL_ARTIFACTS_URI) cannot be written: {said}") from error

    def remove(self, uri: str) -> None:
        """Remove a folder and its content; no error if there is none.

        Raises:
            ValueError: it lies elsewhere, such as where the artifacts were before.
        """
        if not is_below(uri, self.root):
            raise ValueError(f"{uri} is not below {self.root} (DASL_ARTIFACTS_URI)")
        fs, path = self._open_store(uri)
        try:
            fs.rm(path, recursive=True)
        except FileNotFoundError:
            return

    def folders(self, uri: str) -> list[str]:
        """URIs of the direct subfolders of a folder; empty if there is none."""
        fs, path = self._open_store(uri)
        fs.invalidate_cache()
        try:
            entries = fs.ls(path, detail=True)
        except FileNotFoundError:
            return []
        names = [str(each["name"]) for each in entries if each["type"] == "directory"]
        return [f"{uri}/{name.rstrip('/').rpartition('/')[2]}" for name in sorted(names)]

    def _open_store(self, uri: str) -> tuple[Any, str]:
        fs, path = fsspec.core.url_to_fs(uri)
        return fs, str(path)


def is_below(uri: str, folder: str) -> bool:
    """Whether `uri` names something inside `folder`, read as plain text (nothing is resolved)."""
    if not uri.startswith(f"{folder}/") or _UNSAFE.search(uri):
        return False
    rest = uri[len(folder) + 1 :]
    # fsspec reads what follows `::` as another store.
    return "::" not in rest and all(part not in ("", ".", "..") for part in rest.split("/"))
