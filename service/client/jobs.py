"""Jobs: submit, watch, steer."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dasl_core.spec import JobSpec, load_spec
from service.client.errors import ConnectionFailed, InvalidSpec, JobFailed
from service.client.files import OnBytes, fetch
from service.client.models import (
    Artifact,
    Attempt,
    Checkpoint,
    Evaluation,
    Event,
    Job,
    Metrics,
    Validation,
)
from service.client.pages import pages
from service.client.sse import ServerSentEvent, parse
from service.client.transport import Params, Transport, path_to
from service.client.waiting import OUTAGE_SECONDS, wait_until

Spec = JobSpec | Mapping[str, Any] | str | os.PathLike[str]
"""A spec, a mapping in its form, or the path of a YAML or JSON file."""


class Jobs:
    """`client.jobs`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def submit(self, spec: Spec, *, idempotency_key: str | None = None) -> Job:
        """Submit a job and return it, queued. Raises ApiError, InvalidSpec, ConnectionFailed.

        The same key with the same spec gives the same job, however often it is sent. Without one a
        fresh key is used, which makes this call safe to repeat over a bad connection.
        """
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        return self._bind(self._send_spec(path_to("jobs"), spec, headers))

    def validate(self, spec: Spec) -> Validation:
        """Ask what a spec would do: every "auto" resolved, steps, parameters. Nothing is stored."""
        return Validation.model_validate(self._send_spec(path_to("jobs", "validate"), spec, {}))

    def get(self, job_id: str) -> Job:
        """The job as it is now."""
        return self._look(job_id)

    def list(
        self,
        *,
        status: str | None = None,
        method: str | None = None,
        tag: str | None = None,
        page_size: int = 100,
    ) -> Iterator[Job]:
        """Jobs, newest first; further pages are asked for when they are needed."""
        params = {"status": status, "method": method, "tag": tag, "limit": page_size}
        for item in pages(self._transport, path_to("jobs"), params):
            yield self._bind(item)

    def cancel(self, job_id: str) -> Job:
        """Ask for the job to stop. Raises ApiError (409) when it has ended."""
        return self._bind(self._transport.json("POST", path_to("jobs", job_id, "cancel")))

    def pause(self, job_id: str) -> Job:
        """Ask for the job to give up its place. Raises ApiError (409) when it has ended."""
        return self._bind(self._transport.json("POST", path_to("jobs", job_id, "pause")))

    def resume(self, job_id: str) -> Job:
        """Queue a paused job again. Raises ApiError (409) when it is not paused."""
        return self._bind(self._transport.json("POST", path_to("jobs", job_id, "resume")))

    def clone(
        self,
        job_id: str,
        changes: Mapping[str, Any] | None = None,
        *,
        checkpoint: str | None = "newest",
        idempotency_key: str | None = None,
    ) -> Job:
        """Queue a new job that goes on from this one's checkpoint. Raises ApiError, InvalidSpec.

        Args:
            changes: fields of the spec to change, in its form.
            checkpoint: id of one of the job's; None starts anew.
            idempotency_key: as with `submit`.
        """
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        body = {"changes": dict(changes or {}), "checkpoint": checkpoint}
        path = path_to("jobs", job_id, "clone")
        return self._bind(self._transport.json("POST", path, body=body, headers=headers))

    def update(
        self,
        job_id: str,
        *,
        name: str | None = None,
        tags: Mapping[str, str] | None = None,
        priority: int | None = None,
    ) -> Job:
        """Change what may change after submission; None leaves a field as it is."""
        given = {"name": name, "tags": None if tags is None else dict(tags), "priority": priority}
        body = {key: value for key, value in given.items() if value is not None}
        return self._bind(self._transport.json("PATCH", path_to("jobs", job_id), body=body))

    def wait(
        self,
        job_id: str,
        *,
        timeout: float | None = None,
        poll: float = 1.0,
        outage: float = OUTAGE_SECONDS,
    ) -> Job:
        """Wait until the job has succeeded and return it; outlasts a restart of the server.

        Raises JobFailed when it failed or was cancelled, and WaitTimeout after `timeout` seconds.
        """
        ended = wait_until(
            lambda: self._look(job_id, patience=outage),
            lambda job: job.done,
            timeout=timeout,
            poll=poll,
            what=f"Job {job_id}",
        )
        if ended.status != "succeeded":
            raise JobFailed(ended)
        return ended

    def events(self, job_id: str, *, after: int = 0, page_size: int = 100) -> Iterator[Event]:
        """The job's history after event number `after`, oldest first."""
        params = {"after": after or None, "limit": page_size}
        for item in pages(self._transport, path_to("jobs", job_id, "events"), params):
            yield Event.model_validate(item)

    def stream_events(self, job_id: str, *, after: int = 0) -> Iterator[Event]:
        """The history after `after` and then every new event, until the job has ended.

        Each event comes once and in order, also over cut connections and restarts of the server.
        """
        seen = after

        def known(message: ServerSentEvent) -> None:
            nonlocal seen
            seen = int(message.id or seen)

        path = path_to("jobs", job_id, "events")
        for message in self._follow(job_id, path, lambda: str(seen) if seen else "", known):
            event = Event.model_validate_json(message.data)
            yield event
            if event.ends_job:
                return

    def metrics(
        self,
        job_id: str,
        *,
        name: str | None = None,
        from_step: int | None = None,
        max_points: int | None = None,
    ) -> Metrics:
        """Training figures by column, thinned out on the server to `max_points` (10,000)."""
        params = {"name": name, "from_step": from_step, "max_points": max_points}
        path = path_to("jobs", job_id, "metrics")
        return Metrics.model_validate(self._transport.json("GET", path, params=params))

    def logs(self, job_id: str, *, tail: int | None = None, attempt: int | None = None) -> str:
        """The log of an attempt (the newest without), or its last `tail` lines."""
        params = {"tail": tail, "attempt": attempt}
        return self._transport.text(path_to("jobs", job_id, "logs"), params=params)

    def follow_logs(self, job_id: str, *, tail: int | None = None) -> Iterator[str]:
        """The log's lines, or the last `tail` of them, and then new ones until the job has ended."""
        place = ""

        def known(message: ServerSentEvent) -> None:
            nonlocal place
            place = message.id or place

        path = path_to("jobs", job_id, "logs")
        for message in self._follow(job_id, path, lambda: place, known, {"tail": tail}):
            yield from message.data.split("\n")

    def checkpoints(self, job_id: str) -> Sequence[Checkpoint]:
        """The job's checkpoints, oldest first."""
        found = [Checkpoint.model_validate(item) for item in self._all(job_id, "checkpoints")]
        return sorted(found, key=lambda checkpoint: (checkpoint.step, checkpoint.id))

    def evaluations(self, job_id: str) -> Sequence[Evaluation]:
        """Held-out metrics, by step."""
        found = [Evaluation.model_validate(item) for item in self._all(job_id, "evaluations")]
        return sorted(found, key=lambda evaluation: evaluation.step)

    def artifacts(self, job_id: str) -> Sequence[Artifact]:
        """The job's files: pictures, logs, tables."""
        return [Artifact.model_validate(item) for item in self._all(job_id, "artifacts")]

    def attempts(self, job_id: str) -> Sequence[Attempt]:
        """The job's tries, first one first."""
        found = [Attempt.model_validate(item) for item in self._all(job_id, "attempts")]
        return sorted(found, key=lambda attempt: attempt.number)

    def download_artifact(
        self,
        job_id: str,
        artifact: Artifact,
        directory: str | os.PathLike[str],
        *,
        on_bytes: OnBytes | None = None,
    ) -> Path:
        """Fetch one of `artifacts(job_id)` into `directory`, verified, and return its place."""
        return fetch(
            self._transport,
            path_to("jobs", job_id, "artifacts", artifact.name),
            Path(directory),
            artifact.name,
            size=artifact.size,
            sha256=artifact.sha256,
            on_bytes=on_bytes,
        )

    def _follow(
        self,
        job_id: str,
        path: str,
        last_id: Callable[[], str],
        known: Callable[[ServerSentEvent], None],
        params: Params | None = None,
    ) -> Iterator[ServerSentEvent]:
        """Server-sent events until the job has ended and the server has no more of them."""
        answered = time.monotonic()
        pause = 0.2
        while True:
            headers = {"Accept": "text/event-stream"}
            if last_id():
                headers["Last-Event-ID"] = last_id()
            ended = False
            try:
                # Asked before the stream: what it then brings is all there is of an ended job.
                ended = self._look(job_id).done
                with self._transport.stream(path, params=params, headers=headers) as response:
                    for message in parse(response.iter_bytes()):
                        answered, pause = time.monotonic(), 0.2
                        known(message)
                        yield message
            except ConnectionFailed:
                if time.monotonic() - answered > OUTAGE_SECONDS:
                    raise
            else:
                answered = time.monotonic()
                if ended:
                    return
            time.sleep(pause)
            pause = min(pause * 2, 5.0)

    def _all(self, job_id: str, part: str) -> Iterator[dict[str, Any]]:
        return pages(self._transport, path_to("jobs", job_id, part), {})

    def _send_spec(self, path: str, spec: Spec, headers: Mapping[str, str]) -> Any:
        body = _spec_body(spec)
        try:
            return self._transport.json("POST", path, body=body, headers=headers)
        except (TypeError, ValueError) as error:
            raise InvalidSpec(f"The spec holds a value that JSON cannot say: {error}") from error

    def _look(self, job_id: str, patience: float | None = None) -> Job:
        return self._bind(self._transport.json("GET", path_to("jobs", job_id), patience=patience))

    def _bind(self, answer: Any) -> Job:
        job = Job.model_validate(answer)
        job._jobs = self
        return job


def _spec_body(spec: Spec) -> dict[str, Any]:
    if isinstance(spec, JobSpec):
        # As it was written: what was left to a default stays the server's to decide.
        body = spec.model_dump(mode="json", exclude_unset=True)
        if "method" in body:
            body["method"]["name"] = spec.method.name  # tells the server whose settings these are
        return body
    if isinstance(spec, Mapping):
        return dict(spec)
    try:
        return load_spec(Path(spec))
    except ValueError as error:
        raise InvalidSpec(str(error)) from error
