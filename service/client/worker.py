"""The worker door: how a training attempt, or an ingest run, reports home.

Every call goes on against an API that is away for `patience` seconds, because an unreachable control
plane alone must never end a training; the caller says how long it can wait. A refusal because the
attempt was replaced or its job has ended is `StaleAttempt`: the process must stop.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from dasl_core.spec import DatasetFacts, ResolvedJobSpec
from service.client.config import resolve_connection
from service.client.models import CheckpointFile
from service.client.transport import Transport

Desired = Literal["run", "cancel", "pause"]
Outcome = Literal["succeeded", "failed", "cancelled", "paused"]


class _Answer(BaseModel):
    # A newer API may say more than this worker understands.
    model_config = ConfigDict(extra="ignore")


class WorkerDataset(_Answer):
    """A data set to read: images below `uri`, their index at `index_uri`."""

    id: str
    name: str
    uri: str
    index_uri: str
    facts: DatasetFacts


class Resume(_Answer):
    """The checkpoint to go on from."""

    checkpoint_id: str
    uri: str
    files: list[CheckpointFile]
    step: int
    branch: bool = False


class AttemptStart(_Answer):
    """All that an attempt needs to train.

    `dataset_roots` are folders outside of which nothing may be read; none: everything may.
    """

    spec: ResolvedJobSpec
    dataset: WorkerDataset
    evaluate_dataset: WorkerDataset | None = None
    resume: Resume | None = None
    artifacts_uri: str
    heartbeat_seconds: float
    dataset_roots: list[str] = []


class IngestStart(_Answer):
    """What an ingest run reads, and the folder for its index."""

    uri: str
    artifacts_uri: str
    dataset_roots: list[str] = []


class WorkerClient:
    """Reports of one attempt of one job. Safe to share between threads.

    For an ingest run `job` and `attempt` stay unset and only `dataset_start` and `dataset_finish` work.
    """

    def __init__(
        self,
        url: str,
        token: str,
        job: str | None = None,
        attempt: int | None = None,
        *,
        patience: float = 60.0,
    ) -> None:
        self._transport = Transport(resolve_connection(url, token), patience=patience)
        self._job = job
        self._attempt = attempt
        self._not_finite: set[str] = set()

    def start(self, *, patience: float | None = None) -> AttemptStart:
        """Say that the attempt runs and learn what to do; may be repeated."""
        return AttemptStart.model_validate(self._post("start", {}, patience))

    def damaged(
        self, checkpoint_id: str, damage: str, *, patience: float | None = None
    ) -> AttemptStart:
        """Say that the checkpoint to go on from is damaged; learn from which to go on instead."""
        body = {"checkpoint_id": checkpoint_id, "damage": damage}
        return AttemptStart.model_validate(self._post("damaged-checkpoint", body, patience))

    def heartbeat(
        self, progress: Mapping[str, Any] | None = None, *, patience: float | None = None
    ) -> Desired:
        """Say that the attempt lives, and how far it is; learn what a person wants of it."""
        body = {"progress": _finite(progress or {})}
        desired: Desired = self._post("heartbeat", body, patience)["desired"]
        return desired

    def metrics(
        self, points: Sequence[Mapping[str, Any]], *, patience: float | None = None
    ) -> None:
        """Report points `{"step": int, "time": float, "values": {name: float}}`.

        NaN and infinities are left out; the first of each name becomes an event of type `nan`.
        """
        for point in points:
            for name, value in point["values"].items():
                if not math.isfinite(value) and name not in self._not_finite:
                    message = f"{name} is {value} at step {point['step']}"
                    data = {"metric": name, "step": point["step"]}
                    self.event("nan", message, data, patience=patience)
                    # Not before: whoever repeats this call after an outage must tell it again.
                    self._not_finite.add(name)
        finite = [{**point, "values": _finite(point["values"])} for point in points]
        kept = [point for point in finite if point["values"]]
        if kept:
            self._post("metrics", {"points": kept}, patience)

    def evaluation(
        self,
        *,
        step: int,
        epoch: float,
        subject: Literal["raw", "untrained", "backbone"],
        metrics: Mapping[str, Any],
        patience: float | None = None,
    ) -> None:
        """Report metrics of held-out images; the ones that are not finite are left out."""
        body = {"step": step, "epoch": epoch, "subject": subject, "metrics": _finite(metrics)}
        self._post("evaluations", body, patience)

    def event(
        self,
        type: str,
        message: str,
        data: Mapping[str, Any] | None = None,
        *,
        patience: float | None = None,
    ) -> None:
        """Add an entry to the job's history."""
        body = {"type": type, "message": message, "data": dict(data or {})}
        self._post("events", body, patience)

    def checkpoint(
        self,
        *,
        step: int,
        epoch: float,
        uri: str,
        files: Sequence[Mapping[str, Any]],
        metrics: Mapping[str, Any] | None = None,
        final: bool = False,
        patience: float | None = None,
    ) -> str:
        """Register a checkpoint that is written whole; `files` are `{name, size, sha256}`.

        Returns its id. From now on it exists: for people, and for the next attempt.
        """
        body = {
            "step": step,
            "epoch": epoch,
            "uri": uri,
            "files": [dict(file) for file in files],
            "metrics": _finite(metrics or {}),
            "final": final,
        }
        return str(self._post("checkpoints", body, patience)["id"])

    def artifact(
        self,
        *,
        name: str,
        uri: str,
        size: int,
        sha256: str,
        content_type: str,
        patience: float | None = None,
    ) -> None:
        """Register a file for people to download; the same name again replaces it."""
        body = {
            "name": name,
            "uri": uri,
            "size": size,
            "sha256": sha256,
            "content_type": content_type,
        }
        self._post("artifacts", body, patience)

    def finish(
        self,
        outcome: Outcome,
        error: Mapping[str, Any] | None = None,
        *,
        retryable: bool = True,
        repeatable: bool = False,
        patience: float | None = None,
    ) -> None:
        """Say how the attempt ended.

        A failure that is not retryable fails the job at once; one that is repeatable does so when it
        comes twice in a row without a step more in between.
        """
        body = {
            "outcome": outcome,
            "error": None if error is None else dict(error),
            "retryable": retryable,
            "repeatable": repeatable,
        }
        self._post("finish", body, patience)

    def dataset_start(self, dataset: str, *, patience: float | None = None) -> IngestStart:
        """Say that ingest of the data set runs, and learn where its images are."""
        answer = self._send(f"/worker/v1/datasets/{dataset}/start", {}, patience)
        return IngestStart.model_validate(answer)

    def dataset_finish(
        self,
        dataset: str,
        *,
        state: Literal["ready", "failed"],
        facts: Mapping[str, Any] | None = None,
        report: Mapping[str, Any] | None = None,
        index_uri: str | None = None,
        error: str | None = None,
        patience: float | None = None,
    ) -> None:
        """Say what ingest found, or why it found nothing."""
        body = {
            "state": state,
            "facts": None if facts is None else dict(facts),
            "report": None if report is None else dict(report),
            "index_uri": index_uri,
            "error": error,
        }
        self._send(f"/worker/v1/datasets/{dataset}/finish", body, patience)

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def _post(self, action: str, body: object, patience: float | None) -> Any:
        assert self._job is not None, "made without a job"
        assert self._attempt is not None, "made without an attempt"
        path = f"/worker/v1/jobs/{self._job}/attempts/{self._attempt}/{action}"
        return self._send(path, body, patience)

    def _send(self, path: str, body: object, patience: float | None) -> Any:
        # Repeatable, all of them: an answer may be lost, and the door takes a second report of the
        # same thing for the first one.
        return self._transport.json("POST", path, body=body, repeatable=True, patience=patience)


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` without NaN and infinities, which JSON cannot say."""
    return {
        key: value
        for key, value in values.items()
        if not isinstance(value, float) or math.isfinite(value)
    }
