"""Jobs: submit, follow, control."""

import json
import os
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from service.client.aio.files import OnBytes, fetch_all
from service.client.aio.models import AsyncJob
from service.client.aio.sse import follow
from service.client.aio.transport import AsyncResource, Params, Record, path_to
from service.client.aio.waiting import OUTAGE_SECONDS, wait_until
from service.client.errors import JobFailed
from service.client.models import Attempt, ServerSentEvent, Validation, read
from service.client.specs import Spec
from service.states import JobStatus
from service.wire.checkpoints import ArtifactView, CheckpointView, DeletedCheckpoints
from service.wire.events import EventView
from service.wire.jobs import EvaluationView, MetricColumns


class AsyncJobs(AsyncResource):
    """`client.jobs`."""

    async def submit(self, spec: Spec, *, idempotency_key: str | None = None) -> AsyncJob:
        """Submit a job and return it in state `queued`.

        Args:
            idempotency_key: repeating a call with the same key and spec returns the same job. By default
                a fresh key is used, so that the request can be retried over a bad connection.

        Raises:
            ApiError: the server refused the spec.
            InvalidSpec: the spec cannot be read or sent.
            ConnectionFailed: the server does not answer.
        """
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        return self._bind(await self._send_spec(path_to("jobs"), spec, headers))

    async def validate(self, spec: Spec) -> Validation:
        """Resolve every "auto" of a spec and estimate steps and memory, without submitting it."""
        return read(Validation, await self._send_spec(path_to("jobs", "validate"), spec, {}))

    async def get(self, job_id: str, *, patience: float | None = None) -> AsyncJob:
        """Return the current state of a job."""
        path = path_to("jobs", job_id)
        return self._bind(await self._transport.json("GET", path, patience=patience))

    async def list(
        self,
        *,
        status: str | None = None,
        method: str | None = None,
        tag: str | None = None,
        experiment: str | None = None,
        page_size: int = 100,
    ) -> AsyncIterator[AsyncJob]:
        """Iterate over jobs, newest first. Pages are requested as needed."""
        params: dict[str, str | int | None] = {
            "status": status,
            "method": method,
            "tag": tag,
            "experiment": experiment,
            "limit": page_size,
        }
        async for item in self._transport.pages(path_to("jobs"), params):
            yield self._bind(item)

    async def cancel(self, job_id: str) -> AsyncJob:
        """Cancel a job.

        Raises:
            ApiError: 409 if it has already ended in another state.
        """
        return await self._request(job_id, "cancel")

    async def delete(self, job_id: str) -> None:
        """Delete a job that has ended, with its checkpoints, metrics, logs and other files.

        Raises:
            ApiError: 409 if it, or a clone that needs it, has not ended, or a checkpoint is pinned.
        """
        await self._transport.json("DELETE", path_to("jobs", job_id))

    async def undelete(self, job_id: str) -> AsyncJob:
        """Take back what retention by age is about to remove of a job (`expires_at`).

        Raises:
            ApiError: 409 if nothing is.
        """
        return await self._request(job_id, "undelete")

    async def pause(self, job_id: str) -> AsyncJob:
        """Pause a job.

        Raises:
            ApiError: 409 if it has ended.
        """
        return await self._request(job_id, "pause")

    async def resume(self, job_id: str) -> AsyncJob:
        """Resume a paused job.

        Raises:
            ApiError: 409 if it is not paused.
        """
        return await self._request(job_id, "resume")

    async def clone(
        self,
        job_id: str,
        changes: Mapping[str, Any] | None = None,
        *,
        checkpoint: str | None = "newest",
        idempotency_key: str | None = None,
    ) -> AsyncJob:
        """Submit a new job that continues from a checkpoint of this one.

        Args:
            changes: fields of the spec to change, nested as in a spec.
            checkpoint: id of one of the job's checkpoints; "newest"; "best" by `checkpoints.best_by` of the
                job; None starts from scratch.
            idempotency_key: see `submit`.

        Raises:
            ApiError: the server refused the request.
            InvalidSpec: `changes` cannot be sent.
        """
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        body = {"changes": dict(changes or {}), "checkpoint": checkpoint}
        path = path_to("jobs", job_id, "clone")
        return self._bind(await self._transport.json("POST", path, body=body, headers=headers))

    async def update(
        self,
        job_id: str,
        *,
        name: str | None = None,
        tags: Mapping[str, str] | None = None,
        priority: int | None = None,
        max_hours: float | None = None,
        workers: int | None = None,
    ) -> AsyncJob:
        """Change the name, tags, priority, time limit or workers of a job; None leaves a field unchanged.

        Only a paused or queued job can change its workers.
        """
        resources = {"max_hours": max_hours, "workers": workers}
        changed = {key: value for key, value in resources.items() if value is not None}
        fields = {
            "name": name,
            "tags": None if tags is None else dict(tags),
            "priority": priority,
            "resources": changed or None,
        }
        body = {key: value for key, value in fields.items() if value is not None}
        return self._bind(await self._transport.json("PATCH", path_to("jobs", job_id), body=body))

    async def wait(
        self,
        job_id: str,
        *,
        timeout: float | None = None,
        poll: float = 1.0,
        outage: float = OUTAGE_SECONDS,
    ) -> AsyncJob:
        """Wait until the job has succeeded and return it.

        Args:
            timeout: seconds to wait; None waits without limit.
            poll: seconds between requests.
            outage: longest tolerated outage of the server, in seconds.

        Raises:
            JobFailed: it failed, was cancelled, or is paused at its time limit.
            WaitTimeout: it has not ended after `timeout` seconds.
        """
        job = await wait_until(
            lambda: self.get(job_id, patience=outage),
            lambda job: job.done or job.is_at_time_limit,
            f"Job {job_id}",
            timeout=timeout,
            poll=poll,
        )
        if job.status != JobStatus.SUCCEEDED:
            raise JobFailed(job)
        return job

    def events(
        self, job_id: str, *, after: int = 0, page_size: int = 100
    ) -> AsyncIterator[EventView]:
        """Iterate over the job's events after number `after`, oldest first."""
        params = {"after": after or None, "limit": page_size}
        return self._transport.records(EventView, path_to("jobs", job_id, "events"), params)

    async def stream_events(
        self, job_id: str, *, after: int = 0
    ) -> AsyncGenerator[EventView, None]:
        """Iterate over events after number `after`, then over new ones, until the job has ended.

        Each event is yielded once and in order, even after lost connections and server restarts.
        """
        path, last_id = path_to("jobs", job_id, "events"), str(after) if after else ""
        async with aclosing(self._follow(job_id, path, {}, last_id)) as messages:
            async for message in messages:
                event = read(EventView, json.loads(message.data))
                yield event
                if event.ends_job:
                    return

    async def metrics(
        self,
        job_id: str,
        *,
        name: str | Sequence[str] | None = None,
        from_step: int | None = None,
        to_step: int | None = None,
        max_points: int | None = None,
    ) -> MetricColumns:
        """Return training metrics as columns, downsampled on the server to `max_points` (10,000).

        Args:
            name: a metric or several; all by default.
            to_step: the last step; all by default.
        """
        params: Params = {
            "name": name,
            "from_step": from_step,
            "to_step": to_step,
            "max_points": max_points,
        }
        path = path_to("jobs", job_id, "metrics")
        return await self._transport.read(MetricColumns, "GET", path, params=params)

    async def logs(
        self, job_id: str, *, tail: int | None = None, attempt: int | None = None
    ) -> str:
        """Return the log of an attempt (default: the newest), or only its last `tail` lines."""
        params = {"tail": tail, "attempt": attempt}
        return await self._transport.text(path_to("jobs", job_id, "logs"), params=params)

    async def follow_logs(
        self, job_id: str, *, tail: int | None = None
    ) -> AsyncGenerator[str, None]:
        """Iterate over the log's lines (or its last `tail`), then over new ones, until the job has ended."""
        path, params = path_to("jobs", job_id, "logs"), {"tail": tail}
        async with aclosing(self._follow(job_id, path, params)) as messages:
            async for message in messages:
                for line in message.data.split("\n"):
                    yield line

    async def checkpoints(self, job_id: str) -> Sequence[CheckpointView]:
        """Return the job's checkpoints, oldest first."""
        checkpoints = await self._all(CheckpointView, job_id, "checkpoints")
        return sorted(checkpoints, key=lambda checkpoint: (checkpoint.step, checkpoint.id))

    async def delete_checkpoints(self, job_id: str) -> DeletedCheckpoints:
        """Delete the checkpoints of an ended job except the newest, final, best and pinned ones.

        Raises:
            ApiError: 409 if it has not ended.
        """
        return await self._transport.read(
            DeletedCheckpoints, "DELETE", path_to("jobs", job_id, "checkpoints")
        )

    async def evaluations(self, job_id: str) -> Sequence[EvaluationView]:
        """Return the evaluations on held-out images, in order of their steps."""
        evaluations = await self._all(EvaluationView, job_id, "evaluations")
        return sorted(evaluations, key=lambda evaluation: evaluation.step)

    async def artifacts(self, job_id: str) -> Sequence[ArtifactView]:
        """Return the job's other files, such as plots."""
        return await self._all(ArtifactView, job_id, "artifacts")

    async def attempts(self, job_id: str) -> Sequence[Attempt]:
        """Return the job's attempts, oldest first."""
        attempts = await self._all(Attempt, job_id, "attempts")
        return sorted(attempts, key=lambda attempt: attempt.number)

    async def download_artifacts(
        self,
        job_id: str,
        artifacts: Sequence[ArtifactView],
        directory: str | os.PathLike[str],
        *,
        on_bytes: OnBytes | None = None,
        force: bool = False,
    ) -> Sequence[Path]:
        """Download some of `artifacts(job_id)` into `directory`, verify them, and return their paths.

        Raises:
            DownloadFailed: a file exists with another content, and `force` is False.
        """
        path = ("jobs", job_id, "artifacts")
        return await fetch_all(self._transport, path, artifacts, Path(directory), on_bytes, force)

    def _follow(
        self, job_id: str, path: str, params: Params, last_id: str = ""
    ) -> AsyncGenerator[ServerSentEvent, None]:
        """Yield server-sent events until the job has ended and the stream is complete."""

        async def has_ended() -> bool:
            return (await self.get(job_id)).done

        return follow(self._transport, path, params, last_id, has_ended)

    async def _all(self, model: type[Record], job_id: str, collection: str) -> Sequence[Record]:
        records = self._transport.records(model, path_to("jobs", job_id, collection), {})
        return [record async for record in records]

    async def _request(self, job_id: str, action: str) -> AsyncJob:
        return self._bind(await self._transport.json("POST", path_to("jobs", job_id, action)))

    def _bind(self, answer: Any) -> AsyncJob:
        job = read(AsyncJob, answer)
        job._jobs = self
        return job
