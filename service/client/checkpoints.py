"""Checkpoints and the other files of a job."""

from __future__ import annotations

import os
from pathlib import Path

from service.client.files import OnBytes, fetch, safe_name
from service.client.models import Checkpoint
from service.client.transport import Transport, path_to


class Checkpoints:
    """`client.checkpoints`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def get(self, checkpoint_id: str) -> Checkpoint:
        """The checkpoint with its manifest."""
        return Checkpoint.model_validate(
            self._transport.json("GET", path_to("checkpoints", checkpoint_id))
        )

    def pin(self, checkpoint_id: str, pinned: bool = True) -> Checkpoint:
        """Keep a checkpoint whatever its job's settings say, or no longer."""
        path = path_to("checkpoints", checkpoint_id)
        return Checkpoint.model_validate(
            self._transport.json("PATCH", path, body={"pinned": pinned})
        )

    def delete(self, checkpoint_id: str) -> None:
        """Delete a checkpoint. Raises ApiError (409) when it is pinned or still needed."""
        self._transport.json("DELETE", path_to("checkpoints", checkpoint_id))

    def download(
        self,
        checkpoint_id: str,
        directory: str | os.PathLike[str],
        *,
        on_bytes: OnBytes | None = None,
    ) -> list[Path]:
        """Fetch all files into `directory` and return their places.

        An interrupted download is taken up where it stopped; every file is checked against the
        SHA-256 of the manifest before it gets its name. Raises DownloadFailed.
        """
        checkpoint = self.get(checkpoint_id)
        for file in checkpoint.files:  # refuse a bad manifest before anything is written
            safe_name(file.name)
        return [
            fetch(
                self._transport,
                path_to("checkpoints", checkpoint_id, "files", file.name),
                Path(directory),
                file.name,
                size=file.size,
                sha256=file.sha256,
                on_bytes=on_bytes,
            )
            for file in checkpoint.files
        ]
