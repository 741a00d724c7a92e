"""States of jobs, attempts and data sets, and a job's transitions. Imports neither FastAPI nor SQL."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from dasl_core.vocabulary import Outcome


class JobStatus(StrEnum):
    """Observed status of a job."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    RETRY_WAIT = "retry_wait"
    PAUSING = "pausing"
    PAUSED = "paused"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Desired(StrEnum):
    """Requested status of a job, in the words of `dasl_core.vocabulary`."""

    RUN = "run"
    PAUSE = "pause"
    CANCEL = "cancel"


class AttemptState(StrEnum):
    """State of an attempt; a `lost` attempt stopped sending heartbeats."""

    CREATED = "created"
    SUBMITTED = "submitted"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    PAUSED = "paused"
    LOST = "lost"


class StopReason(StrEnum):
    """Why the service stops an attempt, which saves a checkpoint first."""

    TIME_LIMIT = "time-limit"
    """The job's attempts reached its time limit; the job is paused."""
    SHUTDOWN = "shutdown"
    """The service is stopping; the job is queued again, without using up a restart."""
    DRAIN = "drain"
    """A node of its ranks is drained; the job is queued again, without using up a restart."""
    PREEMPTED = "preempted"
    """The job is preempted by one of higher rank; it is queued again, without using up a restart."""
    OTHER = "other"
    """A reason of a newer version; the job is queued again, without using up a restart."""

    @classmethod
    def _missing_(cls, value: object) -> StopReason | None:
        return cls.OTHER if isinstance(value, str) else None


class DatasetState(StrEnum):
    """State of a data set."""

    UPLOADING = "uploading"
    PENDING = "pending"
    INGESTING = "ingesting"
    READY = "ready"
    FAILED = "failed"


READY = frozenset({"ok", "idle", "starting"})
"""Results of the checks of `/readyz` that allow jobs to be submitted and run; an idle Ray starts for them."""


class TaskState(StrEnum):
    """State of a preview, a preparation, a run of a finished model or a search."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class DeliveryState(StrEnum):
    """State of the delivery of a message to a webhook."""

    PENDING = "pending"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


AttemptOutcome = Literal[Outcome, "lost"]

_S = JobStatus

TRANSITIONS: dict[JobStatus, frozenset[JobStatus]] = {
    # Nothing runs in queued, paused and retry_wait: these need no status for stopping.
    _S.QUEUED: frozenset({_S.STARTING, _S.PAUSED, _S.CANCELLED}),
    _S.STARTING: frozenset({_S.RUNNING, _S.RETRY_WAIT, _S.FAILED, _S.PAUSING, _S.CANCELLING}),
    # To queued: the service stopped the attempt, which saved a checkpoint.
    _S.RUNNING: frozenset(
        {_S.SUCCEEDED, _S.FAILED, _S.RETRY_WAIT, _S.QUEUED, _S.PAUSING, _S.CANCELLING}
    ),
    _S.RETRY_WAIT: frozenset({_S.QUEUED, _S.PAUSED, _S.CANCELLED}),
    # The training may complete before it pauses.
    _S.PAUSING: frozenset({_S.PAUSED, _S.SUCCEEDED, _S.FAILED, _S.CANCELLING}),
    _S.PAUSED: frozenset({_S.QUEUED, _S.CANCELLED}),
    _S.CANCELLING: frozenset({_S.CANCELLED}),
    _S.SUCCEEDED: frozenset(),
    _S.FAILED: frozenset(),
    _S.CANCELLED: frozenset(),
}

TERMINAL = frozenset(status for status, targets in TRANSITIONS.items() if not targets)

LIVE_ATTEMPT = frozenset({AttemptState.CREATED, AttemptState.SUBMITTED, AttemptState.RUNNING})


class StaleAttempt(Exception):
    """Raised when a finished or superseded attempt reports; its process must exit."""
