"""Previews: request, wait, download, delete."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from service.client.aio.files import OnBytes, fetch_all
from service.client.aio.transport import AsyncTransport, path_to
from service.client.aio.waiting import OUTAGE_SECONDS, wait_until
from service.client.errors import PreviewFailed
from service.client.models import Preview, read
from service.states import TaskState


class AsyncPreviews:
    """`client.previews`."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def request(
        self,
        dataset_id: str,
        spec: Mapping[str, Any],
        *,
        images: int = 8,
        version: int | None = None,
    ) -> Preview:
        """Draw the views of the first images of a training, in the background.

        Args:
            spec: the spec of a job, or only the relevant sections: `method`, `augment` and `backbone`. Its `dataset` is
                ignored.
            images: number of images.
            version: version of the data set; None: the newest.

        Raises:
            ApiError: 422, a field of the spec is invalid.
        """
        body: dict[str, Any] = {"spec": dict(spec), "images": images}
        if version is not None:
            body["version"] = version
        answer = await self._transport.json(
            "POST",
            path_to("datasets", dataset_id, "previews"),
            body=body,
            headers={"Idempotency-Key": uuid.uuid4().hex},
            repeatable=True,
        )
        return read(Preview, answer)

    async def get(self, preview_id: str, *, patience: float | None = None) -> Preview:
        """Return a preview with its files."""
        path = path_to("previews", preview_id)
        return read(Preview, await self._transport.json("GET", path, patience=patience))

    async def delete(self, preview_id: str) -> None:
        """Delete a preview, and stop it if it is being drawn."""
        await self._transport.json("DELETE", path_to("previews", preview_id))

    async def wait(
        self, preview_id: str, *, timeout: float | None = None, poll: float = 0.5
    ) -> Preview:
        """Wait until a preview is drawn.

        Raises:
            PreviewFailed: it cannot be drawn.
            WaitTimeout: it has not ended after `timeout` seconds.
        """
        preview = await wait_until(
            lambda: self.get(preview_id, patience=OUTAGE_SECONDS),
            lambda preview: preview.done,
            timeout=timeout,
            poll=poll,
            name=f"Preview {preview_id}",
        )
        if preview.state == TaskState.FAILED:
            raise PreviewFailed(preview)
        return preview

    async def download(
        self,
        preview: Preview,
        directory: str | os.PathLike[str],
        *,
        on_bytes: OnBytes | None = None,
    ) -> list[Path]:
        """Download all files into `directory`, verified, and return their paths.

        Raises:
            DownloadFailed: a file is incomplete or differs from the manifest.
        """
        files, target = preview.files, Path(directory)
        return await fetch_all(self._transport, "previews", preview.id, files, target, on_bytes)

    async def list(self, dataset_id: str, *, page_size: int = 100) -> AsyncIterator[Preview]:
        """Iterate over the previews of a data set, newest first."""
        path = path_to("datasets", dataset_id, "previews")
        async for item in self._transport.pages(path, {"limit": page_size}):
            yield read(Preview, item)
