"""Data sets: registered images that the service's machines can read."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from service.client.aio.files import fetch
from service.client.aio.models import AsyncDataset
from service.client.aio.threads import in_thread
from service.client.aio.transport import AsyncResource, path_to
from service.client.aio.waiting import OUTAGE_SECONDS, Polling, wait_until
from service.client.errors import DatasetFailed
from service.client.models import read
from service.states import DatasetState
from service.wire.datasets import VersionView

if TYPE_CHECKING:
    from service.client.aio.uploads import OnBytes
    from service.client.packing import Content


class AsyncDatasets(AsyncResource):
    """`client.datasets`."""

    async def add(
        self,
        path: str | os.PathLike[str],
        name: str,
        source: Mapping[str, Any] | None = None,
    ) -> AsyncDataset:
        """Register images. Their ingest runs in the background; `.wait()` waits for it.

        Args:
            path: the folder, archive, list or table on the service's machines: a path, a `file://` URI, or a URI
                of an object store. A relative path is resolved against the current directory of this process.
            name: name of the data set.
            source: which images are used, and where their labels are: fields of
                `dasl_core.spec.source.SourceOptions`.
        """
        uri = os.fspath(path)
        if "://" not in uri:
            uri = os.path.abspath(os.path.expanduser(uri))
        return await self._register({"name": name, "uri": uri}, source)

    async def upload(
        self,
        path: str | os.PathLike[str],
        name: str,
        source: Mapping[str, Any] | None = None,
        *,
        sha256: str | None = None,
        on_bytes: OnBytes | None = None,
    ) -> AsyncDataset:
        """Upload images of this machine and register them; `.wait()` waits for their ingest.

        An unfinished upload of this name is resumed, if the files are the same.

        Args:
            path: an archive (tar, zip), a Parquet file or an `.npy` file; or a folder, whose images are sent as a tar.
            name: name of the data set.
            source: see `add`.
            sha256: SHA-256 of the file, to check after the upload. Each chunk is always checked.
            on_bytes: called with the number of bytes that the server has, and the size.

        Raises:
            UploadFailed: the path is not such a file or folder, or a file changed while it was uploaded.
            ApiError: the server refused the upload, for example because it is too large or the name is taken.
            ConnectionFailed: the server has not answered for minutes; repeat the call to resume.
        """
        from service.client.packing import open_content

        content = await in_thread(open_content, Path(path).expanduser())
        return await self.upload_content(content, name, source, sha256=sha256, on_bytes=on_bytes)

    async def upload_content(
        self,
        content: Content,
        name: str,
        source: Mapping[str, Any] | None = None,
        *,
        sha256: str | None = None,
        on_bytes: OnBytes | None = None,
    ) -> AsyncDataset:
        """Upload content that is already open; see `upload`."""
        # Imported only for uploads, as it would slow down every command.
        from service.client.aio.uploads import check_resumable, send

        dataset = await anext(self.list(name=name, page_size=1), None)
        if dataset is not None and dataset.state == DatasetState.UPLOADING:
            dataset = await self._get(dataset.id)
            check_resumable(dataset, content, source)
        else:
            about = {"filename": content.filename, "size": content.size, "sha256": sha256}
            about["fingerprint"] = content.fingerprint
            dataset = await self._register({"name": name, "upload": about}, source)
        received = 0 if dataset.upload is None else dataset.upload.received
        await send(self._transport, dataset.id, content, received, on_bytes=on_bytes)
        return await self._get(dataset.id, patience=OUTAGE_SECONDS)

    async def _register(
        self, fields: Mapping[str, Any], source: Mapping[str, Any] | None
    ) -> AsyncDataset:
        body = {**fields, "source": dict(source)} if source else fields
        return self._bind(await self._transport.json("POST", path_to("datasets"), body=body))

    async def get(self, dataset: str) -> AsyncDataset:
        """Return a data set by id or name.

        Raises:
            ApiError: 404 if it does not exist.
        """
        if not dataset.startswith("ds_"):
            async for match in self.list(name=dataset, page_size=1):
                return await self._get(match.id)
        return await self._get(dataset)

    async def list(
        self, *, name: str | None = None, page_size: int = 100
    ) -> AsyncIterator[AsyncDataset]:
        """Iterate over data sets, newest first; with `name`, only over the data set of that name."""
        params = {"name": name, "limit": page_size}
        async for item in self._transport.pages(path_to("datasets"), params):
            yield self._bind(item)

    async def delete(self, dataset_id: str) -> None:
        """Remove a data set from the service. Images are not touched, unless they were uploaded.

        Raises:
            ApiError: 409 while a job that has not ended uses it.
        """
        await self._transport.json("DELETE", path_to("datasets", dataset_id))

    async def wait(self, dataset_id: str, **polling: Unpack[Polling[AsyncDataset]]) -> AsyncDataset:
        """Wait until the data set is ready.

        Raises:
            DatasetFailed: ingest failed.
            WaitTimeout: ingest has not ended after `timeout` seconds.
        """
        dataset = await wait_until(
            lambda: self._get(dataset_id, patience=OUTAGE_SECONDS),
            lambda dataset: dataset.done,
            f"Ingest of {dataset_id}",
            **polling,
        )
        if dataset.state == DatasetState.FAILED:
            raise DatasetFailed(dataset)
        return dataset

    async def refresh(self, dataset_id: str) -> AsyncDataset:
        """Read the images again in the background; the data set stays usable. Idempotent while a refresh runs."""
        path = path_to("datasets", dataset_id, "refresh")
        return self._bind(await self._transport.json("POST", path, repeatable=True))

    async def wait_for_refresh(
        self, dataset_id: str, **polling: Unpack[Polling[AsyncDataset]]
    ) -> AsyncDataset:
        """Wait until no ingest of the data set waits or runs.

        Raises:
            DatasetFailed: the refresh failed. The data set stays ready.
            WaitTimeout: it has not ended after `timeout` seconds.
        """
        dataset = await wait_until(
            lambda: self._get(dataset_id, patience=OUTAGE_SECONDS),
            lambda dataset: dataset.is_refreshed,
            f"Refresh of {dataset_id}",
            **polling,
        )
        if dataset.state == DatasetState.FAILED or dataset.refresh is not None:
            raise DatasetFailed(dataset)
        return dataset

    def versions(self, dataset_id: str, *, page_size: int = 100) -> AsyncIterator[VersionView]:
        """Iterate over the versions of a data set, newest first."""
        path = path_to("datasets", dataset_id, "versions")
        return self._transport.records(VersionView, path, {"limit": page_size})

    async def contact_sheet(self, dataset_id: str) -> bytes:
        """Return thumbnails of some images of the newest version, as a JPEG.

        Raises:
            ApiError: 404 if there is none.
        """
        path = path_to("datasets", dataset_id, "contact-sheet")
        with tempfile.TemporaryDirectory(prefix="dasl-") as folder:
            name = "contact-sheet.jpg"
            file = await fetch(self._transport, path, Path(folder), name, size=None, sha256=None)
            return file.read_bytes()

    async def _get(self, dataset_id: str, patience: float | None = None) -> AsyncDataset:
        return self._bind(
            await self._transport.json("GET", path_to("datasets", dataset_id), patience=patience)
        )

    def _bind(self, answer: Any) -> AsyncDataset:
        dataset = read(AsyncDataset, answer)
        dataset._datasets = self
        return dataset
