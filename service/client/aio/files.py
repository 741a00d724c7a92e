"""Downloads: resumable, verified, and written atomically."""

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx

from dasl_core.vocabulary import FILE_NAME, LONGEST_FILE_NAME
from service.client.aio.threads import in_thread, sleep
from service.client.aio.transport import BUSY, AsyncTransport, path_to
from service.client.errors import ApiError, ConnectionFailed, DownloadFailed
from service.wire.checkpoints import FileEntry
from service.wire.previews import PreviewFile

OnBytes = Callable[[str, int, int | None], None]
"""Progress callback: file name, bytes received so far, and total size if known."""

_ATTEMPTS_WITHOUT_PROGRESS = 5


def safe_name(name: str) -> str:
    """Return `name` if it cannot point outside of the target folder.

    Raises:
        DownloadFailed: it is not a plain file name.
    """
    if not re.fullmatch(FILE_NAME, name) or len(name) > LONGEST_FILE_NAME:
        raise DownloadFailed(f"The server sent {name!r}, which is not a plain file name.")
    return name


async def fetch_all(
    transport: AsyncTransport,
    kind: str,
    owner: str,
    files: Sequence[FileEntry | PreviewFile],
    directory: Path,
    on_bytes: OnBytes | None,
) -> list[Path]:
    """Download the files in the manifest of an owner; see `fetch`.

    Args:
        kind: kind of the owner in paths, such as "checkpoints".
    """
    for file in files:  # refuse a bad manifest before writing anything
        safe_name(file.name)
    return [
        await fetch(
            transport,
            path_to(kind, owner, "files", file.name),
            directory,
            file.name,
            size=file.size,
            sha256=file.sha256,
            on_bytes=on_bytes,
        )
        for file in files
    ]


async def fetch(
    transport: AsyncTransport,
    path: str,
    directory: Path,
    name: str,
    *,
    size: int | None,
    sha256: str | None,
    on_bytes: OnBytes | None = None,
) -> Path:
    """Download `path` of the API to `directory/name` and return that path.

    A file that already has the right hash is kept. Bytes are written to a hidden partial file named after
    the hash, which a later call resumes with a Range request. The file is renamed after verification.

    Raises:
        DownloadFailed: the file is incomplete or has another hash.
        ApiError: the server refused the request.
        ConnectionFailed: the server does not answer.
    """
    target = directory / safe_name(name)
    directory.mkdir(parents=True, exist_ok=True)
    if sha256 is not None and target.is_file() and await in_thread(_digest, target) == sha256:
        _report(on_bytes, name, target.stat().st_size, size)
        return target
    partial = directory / f".{name}.{(sha256 or 'unverified')[:16]}.part"
    if sha256 is None:
        partial.unlink(missing_ok=True)  # it may belong to another version of the file
    resumed = partial.exists()
    await _receive(transport, path, partial, name, size, on_bytes)
    if not await in_thread(_matches, partial, size, sha256) and resumed:
        # The earlier bytes may be damaged, so download the whole file again.
        partial.unlink()
        await _receive(transport, path, partial, name, size, on_bytes)
    if not await in_thread(_matches, partial, size, sha256):
        partial.unlink()
        raise DownloadFailed(
            f"{name} does not match the size and SHA-256 in the server's manifest."
        )
    os.replace(partial, target)
    return target


async def _receive(
    transport: AsyncTransport,
    path: str,
    partial: Path,
    name: str,
    size: int | None,
    on_bytes: OnBytes | None,
) -> None:
    """Append to `partial` until it is complete, reconnecting after a lost connection."""
    failures = 0
    while True:
        have = partial.stat().st_size if partial.exists() else 0
        if size is not None and have == size and partial.exists():
            return
        if size is not None and have > size:
            partial.unlink()
            have = 0
        try:
            await _receive_once(transport, path, partial, have, name, size, on_bytes)
        except (ConnectionFailed, ApiError) as error:
            if isinstance(error, ApiError) and error.status not in BUSY:
                raise
            now = partial.stat().st_size if partial.exists() else 0
            failures = 1 if now > have else failures + 1
            if failures >= _ATTEMPTS_WITHOUT_PROGRESS:
                raise
            await sleep(min(0.2 * 2**failures, 5.0))
        else:
            return


async def _receive_once(
    transport: AsyncTransport,
    path: str,
    partial: Path,
    offset: int,
    name: str,
    size: int | None,
    on_bytes: OnBytes | None,
) -> None:
    # "identity", because Range and the hash refer to the uncompressed bytes.
    headers = {"Accept": "*/*", "Accept-Encoding": "identity"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
    async with transport.stream(path, headers=headers) as response:
        if response.status_code == 416:
            partial.unlink(missing_ok=True)
            raise ConnectionFailed(transport.url, f"it has no byte {offset} of {name}")
        resumes = offset > 0 and response.status_code == 206 and _starts_at(response, offset)
        if response.status_code == 206 and offset > 0 and not resumes:
            raise DownloadFailed(f"The server sent the wrong byte range of {name}.")
        received = offset if resumes else 0
        with partial.open("ab" if resumes else "wb") as file:
            # Write chunks as they arrive: buffered ones would be lost with the connection.
            async for chunk in response.aiter_bytes():
                received += len(chunk)
                if size is not None and received > size:
                    raise DownloadFailed(f"{name} is longer than the announced {size} bytes.")
                file.write(chunk)
                _report(on_bytes, name, received, size)
            file.flush()
            await in_thread(os.fsync, file.fileno())


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


def _report(on_bytes: OnBytes | None, name: str, received: int, size: int | None) -> None:
    if on_bytes is not None:
        on_bytes(name, received, size)
