"""Downloads: resumable, verified, and written atomically."""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dasl_core.outputs import OutputExists, check_replaceable, sha256_of
from dasl_core.vocabulary import FILE_NAME, LONGEST_FILE_NAME
from service.client.aio.threads import in_thread, sleep
from service.client.aio.transport import BUSY, AsyncTransport, path_to
from service.client.errors import ApiError, ConnectionFailed, DownloadFailed
from service.wire.checkpoints import ArtifactView, FileEntry
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
    path: Sequence[str],
    files: Sequence[FileEntry | PreviewFile | ArtifactView],
    directory: Path,
    on_bytes: OnBytes | None,
    force: bool,
) -> list[Path]:
    """Download files below a path of the API, such as ("checkpoints", ID, "files"); see `fetch`.

    Raises:
        DownloadFailed: also if one exists with another content, and `force` is False; none is written then.
    """
    # Refuse a bad manifest, or a file in the way, before writing anything.
    targets = {directory / safe_name(file.name): file.sha256 for file in files}
    try:
        await in_thread(lambda: check_replaceable(targets, force=force))
    except OutputExists as error:
        raise DownloadFailed(str(error)) from None
    return [
        await fetch(
            transport,
            path_to(*path, file.name),
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
    if sha256 is not None and await in_thread(sha256_of, target) == sha256:
        if on_bytes is not None:
            on_bytes(name, target.stat().st_size, size)
        return target
    partial = directory / f".{name}.{(sha256 or 'unverified')[:16]}.part"
    if sha256 is None:
        partial.unlink(missing_ok=True)  # it may belong to another version of the file
    resumed = partial.exists()
    download = _Download(transport, path, partial, name, size, on_bytes)
    await download.receive()
    if not await in_thread(_matches, partial, size, sha256) and resumed:
        # The earlier bytes may be damaged, so download the whole file again.
        partial.unlink()
        await download.receive()
    if not await in_thread(_matches, partial, size, sha256):
        partial.unlink()
        raise DownloadFailed(
            f"{name} does not match the size and SHA-256 in the server's manifest."
        )
    os.replace(partial, target)
    return target


@dataclass(frozen=True)
class _Download:
    """Download of a file to `partial`, whose bytes count as received."""

    transport: AsyncTransport
    path: str
    partial: Path
    name: str
    size: int | None
    on_bytes: OnBytes | None

    async def receive(self) -> None:
        """Append to `partial` until it is complete, reconnecting after a lost connection."""
        failures = 0
        while True:
            have = self._received()
            if self.size is not None and have == self.size and self.partial.exists():
                return
            if self.size is not None and have > self.size:
                self.partial.unlink()
                have = 0
            try:
                await self._receive_once(have)
            except (ConnectionFailed, ApiError) as error:
                if isinstance(error, ApiError) and error.status not in BUSY:
                    raise
                failures = 1 if self._received() > have else failures + 1
                if failures >= _ATTEMPTS_WITHOUT_PROGRESS:
                    raise
                await sleep(min(0.2 * 2**failures, 5.0))
            else:
                return

    def _received(self) -> int:
        return self.partial.stat().st_size if self.partial.exists() else 0

    async def _receive_once(self, offset: int) -> None:
        # "identity", because Range and the hash refer to the uncompressed bytes.
        headers = {"Accept": "*/*", "Accept-Encoding": "identity"}
        if offset:
            headers["Range"] = f"bytes={offset}-"
        async with self.transport.stream(self.path, headers=headers) as response:
            if response.status_code == 416:
                self.partial.unlink(missing_ok=True)
                raise ConnectionFailed(
                    self.transport.url, f"it has no byte {offset} of {self.name}"
                )
            content_range: str = response.headers.get("content-range", "")
            resumes = offset > 0 and response.status_code == 206
            if resumes and not content_range.startswith(f"bytes {offset}-"):
                raise DownloadFailed(f"The server sent the wrong byte range of {self.name}.")
            received = offset if resumes else 0
            with self.partial.open("ab" if resumes else "wb") as file:
                # Write chunks as they arrive: buffered ones would be lost with the connection.
                async for chunk in response.aiter_bytes():
                    received += len(chunk)
                    if self.size is not None and received > self.size:
                        raise DownloadFailed(
                            f"{self.name} is longer than the announced {self.size} bytes."
                        )
                    file.write(chunk)
                    if self.on_bytes is not None:
                        self.on_bytes(self.name, received, self.size)
                file.flush()
                await in_thread(os.fsync, file.fileno())


def _matches(path: Path, size: int | None, sha256: str | None) -> bool:
    if size is not None and path.stat().st_size != size:
        return False
    return sha256 is None or sha256_of(path) == sha256
