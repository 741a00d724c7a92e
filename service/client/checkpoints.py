"""Checkpoints: get, pin, delete, download."""

from __future__ import annotations

import os
from pathlib import Path

from service.client.errors import DownloadFailed
from service.client.files import OnBytes, fetch_all
from service.client.models import Checkpoint
from service.client.transport import Transport, path_to


class Checkpoints:
    """`client.checkpoints`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def get(self, checkpoint_id: str) -> Checkpoint:
        """Return a checkpoint with its manifest."""
        return Checkpoint.model_validate(
            self._transport.json("GET", path_to("checkpoints", checkpoint_id))
        )

    def pin(self, checkpoint_id: str, pinned: bool = True) -> Checkpoint:
        """Pin a checkpoint, or unpin it. A pinned one is kept even if the job's settings would delete it."""
        path = path_to("checkpoints", checkpoint_id)
        return Checkpoint.model_validate(
            self._transport.json("PATCH", path, body={"pinned": pinned})
        )

    def delete(self, checkpoint_id: str) -> None:
        """Delete a checkpoint.

        Raises:
            ApiError: 409 while it is pinned or still needed.
        """
        self._transport.json("DELETE", path_to("checkpoints", checkpoint_id))

    def download(
        self,
        checkpoint_id: str,
        directory: str | os.PathLike[str],
        *,
        on_bytes: OnBytes | None = None,
    ) -> list[Path]:
        """Download all files into `directory` and return their paths.

        An interrupted download resumes where it stopped. Every file is verified against the manifest's
        SHA-256 before it gets its final name.

        Raises:
            DownloadFailed: the checkpoint was deleted, or a file is incomplete or differs from the manifest.
        """
        checkpoint = self.get(checkpoint_id)
        if checkpoint.state == "deleted":  # its manifest is empty
            raise DownloadFailed(f"The checkpoint {checkpoint_id} was deleted.")
        files, target = checkpoint.files, Path(directory)
        return fetch_all(self._transport, "checkpoints", checkpoint_id, files, target, on_bytes)
