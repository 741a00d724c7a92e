"""Model runs (evaluations, embeddings and exports of checkpoints): wait, download, delete."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from service.client.aio.files import OnBytes, fetch_all
from service.client.aio.transport import AsyncTransport, path_to
from service.client.aio.waiting import OUTAGE_SECONDS, wait_until
from service.client.errors import ModelRunFailed
from service.client.models import ModelRun, read
from service.states import TaskState


class AsyncModelRuns:
    """`client.model_runs`: evaluations, embeddings and exports of checkpoints."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def get(self, run_id: str, *, patience: float | None = None) -> ModelRun:
        """Return an evaluation, an embedding or an export."""
        path = path_to("model-runs", run_id)
        return read(ModelRun, await self._transport.json("GET", path, patience=patience))

    async def delete(self, run_id: str) -> None:
        """Delete a run with its files, and stop it if it runs."""
        await self._transport.json("DELETE", path_to("model-runs", run_id))

    async def wait(
        self,
        run_id: str,
        *,
        timeout: float | None = None,
        poll: float = 0.5,
        on_poll: Callable[[ModelRun], None] = lambda _: None,
    ) -> ModelRun:
        """Wait until a run has ended.

        Args:
            on_poll: called with each fetched state.

        Raises:
            ModelRunFailed: it has failed.
            WaitTimeout: it has not ended after `timeout` seconds.
        """

        def done(run: ModelRun) -> bool:
            on_poll(run)
            return run.done

        run = await wait_until(
            lambda: self.get(run_id, patience=OUTAGE_SECONDS),
            done,
            timeout=timeout,
            poll=poll,
            name=f"Model run {run_id}",
        )
        if run.state == TaskState.FAILED:
            raise ModelRunFailed(run)
        return run

    async def download(
        self, run: ModelRun, directory: str | os.PathLike[str], *, on_bytes: OnBytes | None = None
    ) -> list[Path]:
        """Download all files into `directory`, verified, and return their paths.

        Raises:
            DownloadFailed: a file is incomplete or differs from the manifest.
        """
        target = Path(directory)
        return await fetch_all(self._transport, "model-runs", run.id, run.files, target, on_bytes)
