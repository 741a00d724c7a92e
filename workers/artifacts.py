"""Files to and from the artifact store, through fsspec."""

import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import fsspec

from service.client.models import CheckpointFile

CHUNK = 1 << 20


def upload(file: Path, uri: str) -> dict[str, Any]:
    """Copy one file to `uri` and return its manifest entry: name, size, sha256."""
    system, target = fsspec.core.url_to_fs(uri)
    system.makedirs(os.path.dirname(target), exist_ok=True)
    digest = hashlib.sha256()
    size = 0
    with open(file, "rb") as source, system.open(target, "wb") as sink:
        while chunk := source.read(CHUNK):
            digest.update(chunk)
            size += len(chunk)
            sink.write(chunk)
        sink.flush()
        if hasattr(sink, "fileno"):  # a local disk: what is registered must outlive the power
            os.fsync(sink.fileno())
    return {"name": file.name, "size": size, "sha256": digest.hexdigest()}


def upload_folder(folder: Path, uri: str) -> list[dict[str, Any]]:
    """Copy the files of a flat folder below `uri`; returns the manifest."""
    return [upload(file, f"{uri}/{file.name}") for file in sorted(folder.iterdir())]


def download(uri: str, files: Sequence[CheckpointFile], folder: Path) -> None:
    """Fetch the files of a manifest into `folder`, checking each.

    Raises:
        OSError: a file is missing, or is not the one that was registered.
    """
    for file in files:
        digest = hashlib.sha256()
        target = folder / Path(file.name).name
        with fsspec.open(f"{uri}/{file.name}", "rb") as source, open(target, "wb") as sink:
            while chunk := source.read(CHUNK):
                digest.update(chunk)
                sink.write(chunk)
        if digest.hexdigest() != file.sha256:
            raise OSError(f"{uri}/{file.name} is damaged: its sha256 is not the registered one")


def fetch(uri: str, file: Path) -> Path:
    """Copy one object to a local file."""
    with fsspec.open(uri, "rb") as source, open(file, "wb") as sink:
        shutil.copyfileobj(source, sink, CHUNK)
    return file


def local_path(uri: str) -> Path:
    """The folder that a data set's URI names: a plain absolute path, or `file://`.

    Raises:
        ValueError: the URI has another scheme.
    """
    parts = urlsplit(uri)
    if parts.scheme not in ("", "file"):
        raise ValueError(f"{uri} is not a folder: expected an absolute path or file://")
    return Path(unquote(parts.path) if parts.scheme else uri)
