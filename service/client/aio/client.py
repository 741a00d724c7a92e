"""`Client`, the entry point of the SDK."""

import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Self

from service.client.aio.access import AsyncAudit, AsyncLogin, AsyncTenants, AsyncTokens, AsyncUsers
from service.client.aio.checkpoints import AsyncCheckpoints
from service.client.aio.datasets import AsyncDatasets
from service.client.aio.experiments import AsyncExperiments
from service.client.aio.jobs import AsyncJobs
from service.client.aio.sse import follow
from service.client.aio.tasks import AsyncModelRuns, AsyncPreparations, AsyncPreviews
from service.client.aio.transport import AsyncTransport, Params, path_to
from service.client.aio.webhooks import AsyncWebhooks
from service.client.config import resolve_connection
from service.client.errors import ApiError
from service.client.models import Cluster, read
from service.client.page import page_address
from service.wire.cluster import DrainView
from service.wire.events import EventEntry
from service.wire.jobs import MetricColumns
from service.wire.storage import StorageView
from service.wire.usage import UsageView


class AsyncClient:
    """Client of a DASL server.

    Address and token come from the arguments, from DASL_URL and DASL_TOKEN, or from the file that `dasl serve` writes,
    in this order. No request is sent before the first call. Idempotent calls are retried for `patience` seconds if the
    server does not answer. An operator's token acts for `tenant`, DASL_TENANT, or its own tenant, in this order.

        async with AsyncClient() as client:
            job = await client.jobs.submit("spec.yaml")
            await job.wait()
            [checkpoint] = [c for c in await client.jobs.checkpoints(job.id) if c.final]
            await client.checkpoints.download(checkpoint.id, "backbone")

    Raises:
        ConfigError: the address or token is malformed. Calls raise ApiError if the server refuses them,
            and ConnectionFailed if it does not answer.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        tenant: str | None = None,
        patience: float = 5.0,
    ) -> None:
        self._transport = AsyncTransport(
            resolve_connection(url, token),
            patience=patience,
            tenant=tenant or os.environ.get("DASL_TENANT"),
        )
        self.jobs = AsyncJobs(self._transport)
        self.datasets = AsyncDatasets(self._transport)
        self.previews = AsyncPreviews(self._transport)
        self.preparations = AsyncPreparations(self._transport)
        self.experiments = AsyncExperiments(self._transport)
        self.checkpoints = AsyncCheckpoints(self._transport)
        self.model_runs = AsyncModelRuns(self._transport)
        self.login = AsyncLogin(self._transport)
        self.tenants = AsyncTenants(self._transport)
        self.users = AsyncUsers(self._transport)
        self.tokens = AsyncTokens(self._transport)
        self.audit = AsyncAudit(self._transport)
        self.webhooks = AsyncWebhooks(self._transport)

    @property
    def url(self) -> str:
        """The server's address."""
        return self._transport.url

    async def cluster(self) -> Cluster:
        """Return the cluster's nodes, CPUs and GPUs, used and free, and the queue."""
        return await self._transport.read(Cluster, "GET", path_to("cluster"))

    async def readiness(self) -> dict[str, str]:
        """Return the checks of the service, each `ok` or a reason; empty if the server has no checks."""
        try:
            answer = await self._transport.json("GET", "/readyz", patience=0.0)
        except ApiError as error:
            answer = error.problem
        checks = answer.get("checks") if isinstance(answer, dict) else None
        return {str(name): str(state) for name, state in (checks or {}).items()}

    def events(
        self,
        *,
        job: str | Sequence[str] | None = None,
        type: str | Sequence[str] | None = None,
        level: str | Sequence[str] | None = None,
        page_size: int = 100,
    ) -> AsyncIterator[EventEntry]:
        """Iterate over the events of all jobs, newest first.

        Args:
            job: ids of jobs.
            type: types of events.
            level: "info", "warning" or "error".
        """
        params = {"job": job, "type": type, "level": level, "limit": page_size}
        return self._transport.records(EventEntry, path_to("events"), params)

    async def metrics(
        self,
        jobs: Sequence[str],
        names: Sequence[str],
        *,
        from_step: int | None = None,
        to_step: int | None = None,
        max_points: int | None = None,
    ) -> dict[str, MetricColumns]:
        """Return metrics of several jobs by their ids, downsampled on the server to `max_points` (1,000) each.

        At most 200 series: jobs times names.
        """
        params: Params = {
            "job": jobs,
            "name": names,
            "from_step": from_step,
            "to_step": to_step,
            "max_points": max_points,
        }
        answer = await self._transport.json("GET", path_to("metrics"), params=params)
        return {each["job_id"]: read(MetricColumns, each) for each in answer["data"]}

    async def stream_events(
        self,
        *,
        job: str | Sequence[str] | None = None,
        type: str | Sequence[str] | None = None,
        level: str | Sequence[str] | None = None,
        after: int | None = None,
    ) -> AsyncGenerator[EventEntry, None]:
        """Iterate over the events of all jobs as they happen, without end.

        Each event is yielded once and in order, even after lost connections and server restarts.

        Args:
            after: `id` of the event before the first one; by default the newest event.
        """
        params: Params = {"job": job, "type": type, "level": level}
        if after is None:  # so that no event is lost before the first one arrives
            newest = await anext(self.events(page_size=1), None)
            after = 0 if newest is None else newest.id
        stream = follow(self._transport, path_to("events"), params, str(after))
        async with aclosing(stream) as messages:
            async for message in messages:
                yield read(EventEntry, json.loads(message.data))

    async def page_address(self) -> str:
        """Return the address of the page with a code that logs in once, with this token, within ten minutes."""
        answer = await self._transport.json("POST", path_to("session", "codes"))
        return page_address(self.url, answer["code"])

    async def storage(self) -> StorageView:
        """Return the storage of the tenant's jobs. Needs a token with scope `admin`."""
        return await self._transport.read(StorageView, "GET", path_to("storage"))

    async def drain(
        self, node: str | None = None, *, save: bool = True, reason: str = ""
    ) -> list[DrainView]:
        """Drain a node or the whole cluster, so that it gets no new workers; return all drains.

        Args:
            node: id, name or address; None: the whole cluster.
            save: whether attempts with ranks there save a checkpoint, and their jobs are queued again.
        """
        body = {"node": node, "save": save, "reason": reason}
        answer = await self._transport.json("POST", path_to("cluster", "drain"), body=body)
        return [read(DrainView, each) for each in answer["data"]]

    async def undrain(self, node: str | None = None) -> list[DrainView]:
        """End the drain of a node, or of the whole cluster; return the remaining drains."""
        body = {"node": node}
        answer = await self._transport.json("POST", path_to("cluster", "undrain"), body=body)
        return [read(DrainView, each) for each in answer["data"]]

    async def usage(
        self, *, since: str | None = None, until: str | None = None, group_by: str = "token"
    ) -> UsageView:
        """Return GPU- and CPU-hours: of the tenant for a token with scope `admin`, otherwise of the token's user.

        Args:
            since: a date, or a date and time, in UTC; by default 30 days before `until`.
            until: the end (exclusive); by default now.
            group_by: "user", "token" or "tag:KEY".
        """
        params = {"from": since, "to": until, "group_by": group_by}
        return await self._transport.read(UsageView, "GET", path_to("usage"), params=params)

    async def close(self) -> None:
        """Close the connections. Leaving `async with AsyncClient() as client:` does the same."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
