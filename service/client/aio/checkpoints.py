"""Checkpoints: get, pin, delete, download; evaluate, embed with, export, and find neighbors."""

import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Literal

from dasl_core.vocabulary import EmbeddingFormat, EmbeddingType, ExportFormat, FeatureKind
from service.client.aio.files import OnBytes, fetch_all
from service.client.aio.threads import in_thread
from service.client.aio.transport import AsyncResource, path_to
from service.client.errors import DownloadFailed
from service.client.models import ModelRun
from service.wire.checkpoints import CheckpointView, Verification
from service.wire.model_runs import NeighborsView


class AsyncCheckpoints(AsyncResource):
    """`client.checkpoints`."""

    async def get(self, checkpoint_id: str, *, job: str | None = None) -> CheckpointView:
        """Return a checkpoint with its manifest.

        Args:
            checkpoint_id: id of the checkpoint; with `job` also "best" or "final".
        """
        path = path_to("checkpoints", checkpoint_id)
        return await self._transport.read(CheckpointView, "GET", path, params={"job": job})

    async def evaluate(
        self,
        checkpoint_id: str,
        dataset: str,
        *,
        version: int | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> ModelRun:
        """Evaluate the backbone on a data set, in the background.

        Args:
            dataset: id or name of the data set.
            version: version of the data set; None: the newest.
            settings: settings like the section `evaluate` of a spec.
        """
        body = {"dataset": dataset, "version": version, "settings": dict(settings or {})}
        return await self._request(checkpoint_id, "evaluations", body)

    async def embed(
        self,
        checkpoint_id: str,
        dataset: str,
        *,
        version: int | None = None,
        features: FeatureKind = "pooled",
        format: EmbeddingFormat = "parquet",
        normalize: bool = False,
        dtype: EmbeddingType = "float32",
    ) -> ModelRun:
        """Embed all images of a data set in the background; see `evaluate` and `POST .../embeddings` for arguments."""
        body = {
            "dataset": dataset,
            "version": version,
            "features": features,
            "format": format,
            "normalize": normalize,
            "dtype": dtype,
        }
        return await self._request(checkpoint_id, "embeddings", body)

    async def export(self, checkpoint_id: str, format: ExportFormat) -> ModelRun:
        """Export the backbone to another format, in the background."""
        return await self._request(checkpoint_id, "exports", {"format": format})

    def runs(
        self, checkpoint_id: str, kind: Literal["evaluations", "embeddings", "exports"]
    ) -> AsyncIterator[ModelRun]:
        """List a checkpoint's model runs, newest first."""
        path = path_to("checkpoints", checkpoint_id, kind)
        return self._transport.records(ModelRun, path, {"limit": 100})

    async def neighbors(
        self,
        checkpoint_id: str,
        image: str | bytes | os.PathLike[str],
        *,
        dataset: str | None = None,
        k: int = 10,
        patience: float = 120.0,
    ) -> NeighborsView:
        """Find the images of an embedding nearest to an image.

        Args:
            image: the key of an image of the embedding, or the path or content of an image file.
            dataset: data set of the embedding; None: the newest embedding.
            patience: seconds to wait for the start of the search, which the first question starts.

        Raises:
            ApiError: 409, the checkpoint has no embedding; 422, the image is invalid or not in the embedding.
        """
        path = path_to("checkpoints", checkpoint_id, "neighbors")
        params: dict[str, str | int | None] = {"dataset": dataset, "k": k}
        if isinstance(image, str):
            params["image"] = image
            return await self._transport.read(
                NeighborsView, "GET", path, params=params, patience=patience
            )
        content = image if isinstance(image, bytes) else await in_thread(Path(image).read_bytes)
        return await self._transport.read(
            NeighborsView,
            "POST",
            path,
            body=content,
            params=params,
            headers={"Content-Type": "application/octet-stream"},
            repeatable=True,
            patience=patience,
        )

    async def _request(self, checkpoint_id: str, kind: str, body: Mapping[str, Any]) -> ModelRun:
        """Request a run; an equal run that has not failed is returned instead."""
        path = path_to("checkpoints", checkpoint_id, kind)
        return await self._transport.read(ModelRun, "POST", path, body=dict(body), repeatable=True)

    async def pin(self, checkpoint_id: str, pinned: bool = True) -> CheckpointView:
        """Pin or unpin a checkpoint. A pinned one is kept even if the job's settings would delete it."""
        path = path_to("checkpoints", checkpoint_id)
        return await self._transport.read(CheckpointView, "PATCH", path, body={"pinned": pinned})

    async def report_verification(
        self, checkpoint_id: str, verification: Verification
    ) -> CheckpointView:
        """Record the result of `dasl verify`.

        Raises:
            ApiError: 409, it is of another certificate.
        """
        path = path_to("checkpoints", checkpoint_id)
        body = {"verification": verification.model_dump()}
        return await self._transport.read(CheckpointView, "PATCH", path, body=body)

    async def delete(self, checkpoint_id: str) -> None:
        """Delete a checkpoint.

        Raises:
            ApiError: 409 while it is pinned or still needed.
        """
        await self._transport.json("DELETE", path_to("checkpoints", checkpoint_id))

    async def download(
        self,
        checkpoint_id: str,
        directory: str | os.PathLike[str],
        *,
        on_bytes: OnBytes | None = None,
        force: bool = False,
    ) -> list[Path]:
        """Download all files into `directory` and return their paths.

        An interrupted download resumes where it stopped. Every file is verified against the manifest's
        SHA-256 before it gets its final name.

        Raises:
            DownloadFailed: the checkpoint was deleted, the folder has weights that it lacks, a file is incomplete
                or differs from the manifest, or one exists with another content and `force` is False.
        """
        checkpoint = await self.get(checkpoint_id)
        if checkpoint.state == "deleted":  # its manifest is empty
            raise DownloadFailed(f"The checkpoint {checkpoint_id} was deleted.")
        files, target = checkpoint.files, Path(directory)
        names = {file.name for file in files}
        present = [path.name for path in target.glob("backbone.*") if path.is_file()]
        if other := sorted({*present} - names):
            raise DownloadFailed(
                f"{target} has {other[0]}, which checkpoint {checkpoint_id} lacks: it may belong to another checkpoint. "
                "Choose another folder, or remove the file."
            )
        path = ("checkpoints", checkpoint_id, "files")
        return await fetch_all(self._transport, path, files, target, on_bytes, force)
