"""The port to whatever runs the attempts: a few verbs, each safe to repeat.

`ray_executor.RayExecutor` is the real adapter. The tests' fake passes the same conformance suite,
so what the dispatcher's tests show on the fake holds on Ray.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from service.scheduling.nodes import Cluster


class ExecutorUnavailable(Exception):
    """The executor cannot be reached now. Nothing is known of what runs there; ask again later."""


class SubmissionRefused(ValueError):
    """The executor will never take this submission: asking again gives the same answer."""


class RunState(StrEnum):
    """What the executor says of a submission."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def ended(self) -> bool:
        """Whether its process is gone for good."""
        return self in (RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED)


@dataclass(frozen=True)
class Run:
    """One submission as the executor sees it. `exit_code` is the driver's, once it has ended."""

    state: RunState
    message: str = ""
    exit_code: int | None = None


@dataclass(frozen=True)
class LogPiece:
    """A part of a driver's log, and how many bytes the whole log has so far."""

    data: bytes
    size: int


class Executor(Protocol):
    """Every method may raise `ExecutorUnavailable`."""

    def submit(
        self, submission_id: str, entrypoint: str, env: Mapping[str, str], token: str
    ) -> None:
        """Run a shell command under this id. An id that is taken already is no error and no
        second run: of any number of calls with one id exactly one command runs.

        `env` is for all processes of the command, wherever they run, and no secret. The token is one:
        it reaches the command's own process alone, which has it from
        `service.client.attempt_token.own_token`, and stands in no command line and no log of the executor's own.

        Raises:
            SubmissionRefused: the executor says this can never run.
        """

    def status(self, submission_id: str) -> Run | None:
        """How far it is; `None`: the executor knows no such submission."""

    def logs(self, submission_id: str, start: int, count: int) -> LogPiece:
        """At most `count` bytes, from byte `start` on, of what its driver and all processes that
        work for it wrote to stdout and stderr; empty, of size 0, if it is unknown."""

    def stop(self, submission_id: str) -> None:
        """End its processes, softly first. No error if it is over or unknown."""

    def cluster(self) -> Cluster:
        """The nodes that are alive."""
