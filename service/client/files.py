"""Files from the service to a folder: resumed after an interruption, verified, never half there."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from service.client.errors import ApiError, ConnectionFailed, DownloadFailed
from service.client.transport import BUSY, Transport

OnBytes = Callable[[str, int, int | None], None]
"""Called with a file's name, the bytes of it that are here, and its size when that is known."""

_ATTEMPTS_WITHOUT_PROGRESS = 5
# Plain names only. No separators, no drive letters, no leading dot (`..`, hidden files), nothing that
# a terminal or a shell would take for something else.
_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,199}")


def safe_name(name: str) -> str:
    """`name` if it is a plain file name. Raises DownloadFailed: it could leave the folder."""
    if not _SAFE_NAME.fullmatch(name):
        raise DownloadFailed(f"The server sent the file name {name!r}, which is not a plain name.")
    return name


def fetch(
    transport: Transport,
    path: str,
    directory: Path,
    name: str,
    *,
    size: int | None,
    sha256: str | None,
    on_bytes: OnBytes | None = None,
) -> Path:
    """Bring `path` of the API to `directory/name` and return that place.

    What is here already with the right hash is kept. Bytes arrive in a hidden partial file named
    after the hash, which a later call takes up with a Range request; only a verified file gets its
    name, atomically. Raises DownloadFailed, ApiError, or ConnectionFailed when the server stays away.
    """
    target = directory / safe_name(name)
    directory.mkdir(parents=True, exist_ok=True)
    if sha256 is not None and target.is_file() and _digest(target) == sha256:
        _tell(on_bytes, name, target.stat().st_size, size)
        return target
    partial = directory / f".{name}.{(sha256 or 'unverified')[:16]}.part"
    if sha256 is None:
        partial.unlink(missing_ok=True)  # nothing says whether its bytes belong to this file
    resumed = partial.exists()
    _receive(transport, path, partial, name, size, on_bytes)
    if not _matches(partial, size, sha256) and resumed:
        # The bytes from before were bad; the server's file may be good.
        partial.unlink()
        _receive(transport, path, partial, name, size, on_bytes)
    if not _matches(partial, size, sha256):
        partial.unlink()
        raise DownloadFailed(f"{name} does not have the size and SHA-256 of the server's manifest.")
    os.replace(partial, target)
    return target


def _receive(
    transport: Transport,
    path: str,
    partial: Path,
    name: str,
    size: int | None,
    on_bytes: OnBytes | None,
) -> None:
    """Append to `partial` until the server has no more, going on after cut connections."""
    failures = 0
    while True:
        have = partial.stat().st_size if partial.exists() else 0
        if size is not None and have == size and partial.exists():
            return
        if size is not None and have > size:
            partial.unlink()
            have = 0
        try:
            _receive_once(transport, path, partial, have, name, size, on_bytes)
        except (ConnectionFailed, ApiError) as error:
            if isinstance(error, ApiError) and error.status not in BUSY:
                raise
            now = partial.stat().st_size if partial.exists() else 0
            failures = 1 if now > have else failures + 1
            if failures >= _ATTEMPTS_WITHOUT_PROGRESS:
                raise
            time.sleep(min(0.2 * 2**failures, 5.0))
        else:
            return


def _receive_once(
    transport: Transport,
    path: str,
    partial: Path,
    have: int,
    name: str,
    size: int | None,
    on_bytes: OnBytes | None,
) -> None:
    # identity: a compressed body would not be the bytes that Range and the hash speak of.
    headers = {"Accept": "*/*", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    with transport.stream(path, headers=headers) as response:
        if response.status_code == 416:
            partial.unlink(missing_ok=True)
            raise ConnectionFailed(transport.url, f"it has no byte {have} of {name}")
        goes_on = have > 0 and response.status_code == 206 and _starts_at(response, have)
        if response.status_code == 206 and have > 0 and not goes_on:
            raise DownloadFailed(f"The server sent another part of {name} than was asked for.")
        received = have if goes_on else 0
        with partial.open("ab" if goes_on else "wb") as file:
            # As they arrive: chunks gathered to a size would be lost with a connection that breaks.
            for chunk in response.iter_bytes():
                received += len(chunk)
                if size is not None and received > size:
                    raise DownloadFailed(f"{name} is longer than the {size} bytes announced.")
                file.write(chunk)
                _tell(on_bytes, name, received, size)
            file.flush()
            os.fsync(file.fileno())


def _starts_at(response: httpx.Response, offset: int) -> bool:
    content_range: str = response.headers.get("content-range", "")
    return content_range.startswith(f"bytes {offset}-")


def _matches(path: Path, size: int | None, sha256: str | None) -> bool:
    if size is not None and path.stat().st_size != size:
        return False
    return sha256 is None or _digest(path) == sha256


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _tell(on_bytes: OnBytes | None, name: str, have: int, size: int | None) -> None:
    if on_bytes is not None:
        on_bytes(name, have, size)
