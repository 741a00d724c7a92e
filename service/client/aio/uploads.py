"""Uploads of images in chunks, which resume automatically, even in another process."""

import base64
import hashlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from dasl_core.spec.source import SourceOptions
from service.client.aio.threads import in_thread, sleep
from service.client.aio.transport import BUSY, AsyncTransport, path_to
from service.client.aio.waiting import OUTAGE_SECONDS
from service.client.errors import ApiError, ConnectionFailed, UploadFailed
from service.client.models import DatasetRecord
from service.client.packing import Content

CHUNK_BYTES = 16 << 20
"""Size of a chunk: the memory of an upload, and the most bytes that an interruption costs."""
OnBytes = Callable[[int, int], None]
"""Progress callback: bytes that the server has, and size."""

_TRANSIENT = BUSY | {408, 429}
# Retry after other requests of the same upload, and send damaged chunks again.
_REPEATED = ("upload-offset", "upload-busy", "digest-mismatch")
_LONGEST_PAUSE = 10.0


def check_resumable(
    dataset: DatasetRecord, content: Content, source: Mapping[str, Any] | None
) -> None:
    """Check that the upload of a data set can be resumed with this content and these options.

    Raises:
        UploadFailed: the upload has other content, or was begun with other options.
    """
    names = ("filename", "size", "fingerprint")
    if any(getattr(dataset.upload, name, None) != getattr(content, name) for name in names):
        raise UploadFailed(
            f"The unfinished upload of {dataset.name} has other files, or they changed since it began. Remove it "
            f"(dasl datasets rm {dataset.id}) and upload again, or choose another name."
        )
    options = SourceOptions.model_validate(source or {})
    if options.model_dump(mode="json", exclude_defaults=True) != (dataset.source or {}):
        raise UploadFailed(
            f"The unfinished upload of {dataset.name} was begun with other options: {dataset.source or 'none'}. Repeat it "
            f"with these, or remove it (dasl datasets rm {dataset.id}) and upload again."
        )


async def send(
    transport: AsyncTransport,
    dataset_id: str,
    content: Content,
    received: int,
    *,
    patience: float = OUTAGE_SECONDS,
    on_bytes: OnBytes | None = None,
) -> None:
    """Send the bytes that the server lacks; resume after lost connections.

    Args:
        received: number of bytes that the server has.
        patience: seconds without progress after which an error is raised.

    Raises:
        UploadFailed: a file has changed.
        ConnectionFailed: the server does not answer.
        ApiError: the server refused a chunk.
    """
    path = path_to("datasets", dataset_id)
    progressed_at, pause = time.monotonic(), 0.2
    while received < content.size:
        if on_bytes is not None:
            on_bytes(received, content.size)
        end = min(received + CHUNK_BYTES, content.size)
        chunk = await in_thread(content.read, received, end)
        headers = await in_thread(_headers, chunk, received, content.size)
        try:
            answer = await transport.json("PUT", f"{path}/content", body=chunk, headers=headers)
        except (ConnectionFailed, ApiError) as error:
            is_final = isinstance(error, ApiError) and not (
                error.status in _TRANSIENT or error.type in _REPEATED
            )
            if is_final or time.monotonic() - progressed_at > patience:
                raise
            await sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            answer = await transport.json("GET", path, patience=patience)
        # The server may have stored a chunk although its answer was lost.
        if (now := _received(answer)) > received:
            received, progressed_at, pause = now, time.monotonic(), 0.2
    if on_bytes is not None:
        on_bytes(content.size, content.size)


def _headers(chunk: bytes, start: int, size: int) -> dict[str, str]:
    digest = base64.b64encode(hashlib.sha256(chunk).digest()).decode()
    return {
        "Content-Type": "application/octet-stream",
        "Content-Range": f"bytes {start}-{start + len(chunk) - 1}/{size}",
        "Content-Digest": f"sha-256=:{digest}:",
    }


def _received(dataset: dict[str, Any] | None) -> int:
    upload = (dataset or {}).get("upload")
    if not upload:
        raise UploadFailed("The server does not say how much of the upload it has.")
    return int(upload["received"])
