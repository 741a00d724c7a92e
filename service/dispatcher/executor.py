"""The port to the system that runs the attempts: a few idempotent methods.

`ray_executor.RayExecutor` is the real adapter. The tests' fake passes the same conformance suite,
so results of the dispatcher's tests on the fake hold on Ray.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from service.scheduling.dispatcher_report import RayReport
from service.scheduling.nodes import Cluster


class ExecutorUnavailable(Exception):
    """The executor is unreachable. The state of its submissions is unknown; retry later."""


class SubmissionRefused(ValueError):
    """The executor will never accept this submission; a retry gives the same answer."""


class SubmissionState(StrEnum):
    """State of a submission as the executor reports it."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def ended(self) -> bool:
        """Whether its process has ended and will not start again."""
        return self in (SubmissionState.SUCCEEDED, SubmissionState.FAILED, SubmissionState.STOPPED)


@dataclass(frozen=True)
class Submission:
    """A submission as the executor reports it. `exit_code` is set once the driver has ended."""

    state: SubmissionState
    message: str = ""
    exit_code: int | None = None


@dataclass(frozen=True)
class LogPiece:
    """A part of a driver's log, and the current size of the whole log in bytes."""

    data: bytes
    size: int


class Executor(Protocol):
    """Interface of an executor. Every method may raise `ExecutorUnavailable`."""

    def submit(
        self,
        submission_id: str,
        entrypoint: str,
        env: Mapping[str, str],
        token: str,
        avoid: Collection[str] = (),
    ) -> None:
        """Run a shell command under this id. Idempotent: exactly one command runs per id.

        It runs on the head, or, if ids of nodes to `avoid` are given, on any other node.

        `env` is set for the process of the command, and is not secret. The token is secret: only the command's own process gets it, from
        `service.client.attempt_token.read_attempt_token`, and no command line or log of the executor has it.

        Raises:
            SubmissionRefused: the executor reports that this can never run.
        """

    def status(self, submission_id: str) -> Submission | None:
        """Return the state of a submission; `None` if the executor does not know it."""

    def logs(self, submission_id: str, start: int, count: int) -> LogPiece:
        """Return at most `count` bytes of a submission's log, from byte `start`.

        The log is the stdout and stderr of its driver and of all processes that work for the driver.
        An unknown submission has an empty log of size 0.
        """

    def stop(self, submission_id: str) -> None:
        """End the processes of a submission, gracefully first. No error if it is over or unknown."""

    def delete(self, submission_id: str) -> bool:
        """Remove the record of a submission that has ended; `status` and `logs` do not know it any more.

        A submission must not be submitted again after this. Idempotent; unknown submissions are ignored.

        Returns:
            Whether the record is gone; `False` if the submission has not ended and therefore stays.
        """

    def cluster(self) -> Cluster:
        """Return the live nodes."""


class OnDemand(Protocol):
    """An executor that runs only while it is needed, such as the Ray of `dasl serve`."""

    def keep(self, *, needed: bool) -> RayReport | None:
        """Start or end the executor, as is due; the main loop calls this before it submits work.

        Args:
            needed: whether there is work.

        Returns:
            `None` while it runs; otherwise what it does instead.
        """
