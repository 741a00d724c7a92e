"""The artifact store for checkpoints, logs and plots, on any file system that fsspec supports."""

import re
from collections.abc import Generator
from datetime import timedelta
from typing import Any, cast
from uuid import uuid4

from service.object_store import open_store, signed_url

_BLOCK = 1 << 20
# A URL must only be valid when the download starts; a resuming client gets another one.
_URL_LIFETIME = timedelta(minutes=10)
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\]")


class Storage:
    """The artifact store below a root URI.

    Args:
        presigned: whether clients download files directly from the store, which must then be S3.
        public_endpoint: endpoint of the store for clients; empty: the same as for this process.
    """

    def __init__(self, root: str, *, presigned: bool = False, public_endpoint: str = "") -> None:
        self.root = root.rstrip("/")
        self._presigned, self._public_endpoint = presigned, public_endpoint

    def attempt_uri(self, job_id: str, number: int) -> str:
        """The folder that one attempt writes to, exclusively."""
        return f"{self.job_uri(job_id)}/attempts/{number}"

    def job_uri(self, job_id: str) -> str:
        """The folder of everything that a job's attempts write."""
        return f"{self.root}/jobs/{job_id}"

    def log_uri(self, job_id: str, number: int) -> str:
        """The first part of an attempt's log; `AttemptLog` reads and writes all parts."""
        return f"{self.attempt_uri(job_id, number)}/driver.log"

    def checkpoints_uri(self, job_id: str, number: int) -> str:
        """The folder of an attempt's checkpoints, each in its own subfolder."""
        return f"{self.attempt_uri(job_id, number)}/checkpoints"

    def artifacts_uri(self, job_id: str, number: int) -> str:
        """The folder of an attempt's other files, such as plots."""
        return f"{self.attempt_uri(job_id, number)}/artifacts"

    def dataset_uri(self, dataset_id: str) -> str:
        """The folder of a data set's index."""
        return f"{self.root}/datasets/{dataset_id}"

    def preview_uri(self, preview_id: str) -> str:
        """The folder of a preview's files."""
        return f"{self.root}/previews/{preview_id}"

    def model_run_uri(self, run_id: str) -> str:
        """The folder of the files of a run of a finished model."""
        return f"{self.root}/model-runs/{run_id}"

    def size(self, uri: str) -> int | None:
        """Size of a file in bytes; `None` if it does not exist."""
        fs, path = open_store(uri)
        try:
            # A cached listing would have an old size, because logs grow while they are read.
            fs.invalidate_cache()
            return int(fs.info(path)["size"])
        except FileNotFoundError:
            return None

    def read(self, uri: str, start: int, stop: int) -> Generator[bytes, None, None]:
        """Read the bytes `start` to `stop` (exclusive) of a file, in blocks."""
        fs, path = open_store(uri)
        with fs.open(path, "rb") as file:
            file.seek(start)
            remaining = stop - start
            while remaining > 0:
                block = cast(bytes, file.read(min(_BLOCK, remaining)))
                if not block:
                    return
                remaining -= len(block)
                yield block

    def direct_url(self, uri: str) -> str | None:
        """Return a URL by which anyone can download a file for some minutes; `None`: only through the API."""
        if not self._presigned:
            return None
        return signed_url(uri, _URL_LIFETIME, self._public_endpoint)

    def check_writable(self) -> None:
        """Check that the store is writable: write a small file below the root and remove it.

        Raises:
            ValueError: the file cannot be written.
        """
        try:
            fs, path = open_store(f"{self.root}/.written-{uuid4().hex}")
            fs.makedirs(fs._parent(path), exist_ok=True)
            fs.pipe_file(path, b"dasl")
            fs.rm_file(path)
        except Exception as error:  # each kind of store raises its own errors
            reason = f"{type(error).__name__}: {error}"
            # The URI may contain a password.
            masked = mask(self.root)
            raise ValueError(
                f"{masked} (DASL_ARTIFACTS_URI) cannot be written: {reason}"
            ) from error

    def remove(self, uri: str) -> None:
        """Remove a folder and its content, if it exists.

        Raises:
            ValueError: it is not below the root, for example because the root was changed.
        """
        if not is_below(uri, self.root):
            raise ValueError(f"{uri} is not below {self.root} (DASL_ARTIFACTS_URI)")
        fs, path = open_store(uri)
        try:
            fs.rm(path, recursive=True)
        except FileNotFoundError:
            return

    def file_sizes(self, uri: str) -> dict[str, int]:
        """Sizes in bytes of the files directly in a folder, by name; empty if it does not exist."""
        files = [entry for entry in self._entries(uri) if entry["type"] == "file"]
        return {entry["name"].rpartition("/")[2]: int(entry["size"]) for entry in files}

    def folders(self, uri: str) -> list[str]:
        """URIs of the direct subfolders of a folder; empty if it does not exist."""
        names = [str(entry["name"]) for entry in self._entries(uri) if entry["type"] == "directory"]
        return [f"{uri}/{name.rstrip('/').rpartition('/')[2]}" for name in sorted(names)]

    def _entries(self, uri: str) -> list[dict[str, Any]]:
        fs, path = open_store(uri)
        fs.invalidate_cache()
        try:
            return list(fs.ls(path, detail=True))
        except FileNotFoundError:
            return []


def mask(uri: str) -> str:
    """Hide the user and the password of a URI."""
    return re.sub("//[^/@]*@", "//***@", uri)


def is_below(uri: str, folder: str) -> bool:
    """Whether `uri` names something inside `folder`, by comparing text (nothing is resolved)."""
    if not uri.startswith(f"{folder}/") or _UNSAFE.search(uri):
        return False
    rest = uri[len(folder) + 1 :]
    # fsspec takes the text after `::` for another store.
    return "::" not in rest and all(part not in ("", ".", "..") for part in rest.split("/"))
