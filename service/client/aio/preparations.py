"""Preparations: request, wait, delete."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from service.client.aio.transport import AsyncTransport, path_to
from service.client.aio.waiting import OUTAGE_SECONDS, wait_until
from service.client.errors import PreparationFailed
from service.client.models import Preparation, read
from service.states import TaskState


class AsyncPreparations:
    """`client.preparations`."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def request(self, dataset_id: str, spec: Mapping[str, Any] | None = None) -> Preparation:
        """Decode the images of a data set for trainings, in the background.

        If an equal preparation is queued or running, return that.

        Args:
            spec: the spec of the training, or only the relevant fields: `backbone.image_size`,
                `backbone.in_channels` and `train.image_cache`. Its `dataset` is ignored.

        Raises:
            ApiError: 422, a field of the spec is invalid.
        """
        path = path_to("datasets", dataset_id, "preparations")
        body = {"spec": dict(spec or {})}
        answer = await self._transport.json("POST", path, body=body, repeatable=True)
        return read(Preparation, answer)

    async def get(self, preparation_id: str, *, patience: float | None = None) -> Preparation:
        """Return a preparation."""
        path = path_to("preparations", preparation_id)
        return read(Preparation, await self._transport.json("GET", path, patience=patience))

    async def delete(self, preparation_id: str) -> None:
        """Delete a preparation, and stop it if it runs. Decoded images stay in the cache."""
        await self._transport.json("DELETE", path_to("preparations", preparation_id))

    async def wait(
        self,
        preparation_id: str,
        *,
        timeout: float | None = None,
        poll: float = 0.5,
        on_poll: Callable[[Preparation], None] = lambda _: None,
    ) -> Preparation:
        """Wait until the images are decoded.

        Args:
            on_poll: called with each fetched state.

        Raises:
            PreparationFailed: they cannot be decoded or cached.
            WaitTimeout: it has not ended after `timeout` seconds.
        """

        def done(preparation: Preparation) -> bool:
            on_poll(preparation)
            return preparation.done

        preparation = await wait_until(
            lambda: self.get(preparation_id, patience=OUTAGE_SECONDS),
            done,
            timeout=timeout,
            poll=poll,
            name=f"Preparation {preparation_id}",
        )
        if preparation.state == TaskState.FAILED:
            raise PreparationFailed(preparation)
        return preparation

    async def list(self, dataset_id: str, *, page_size: int = 100) -> AsyncIterator[Preparation]:
        """Iterate over the preparations of a data set, newest first."""
        path = path_to("datasets", dataset_id, "preparations")
        async for item in self._transport.pages(path, {"limit": page_size}):
            yield read(Preparation, item)
