"""Errors of the SDK, each with a message that contains the remedy.

Neither httpx nor pydantic is imported, so that the command line can use these errors without them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from dasl_core.text import cut

STALE_ATTEMPT = "stale-attempt"
"""Last part of the problem `type` of a request from a superseded attempt."""

UNAUTHENTICATED = "unauthenticated"
LOGIN_FAILED = "login-failed"
"""Problem `type` of a request whose token the server does not accept."""

SPEC_UNREADABLE = "spec-unreadable"
"""Problem `type` of a request that needs a stored spec which the server cannot read."""


class DaslError(Exception):
    """Base of all errors that the SDK raises.

    All of them can be pickled, because they are passed between processes.
    """

    _arguments: tuple[Any, ...]
    _keywords: dict[str, Any]

    def __new__(cls, *arguments: Any, **keywords: Any) -> Self:
        """Keep the arguments, from which pickle rebuilds it: `Exception` keeps only the message."""
        error = super().__new__(cls, *arguments)
        error._arguments, error._keywords = arguments, keywords
        return error

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self._keywords), self._arguments


class ConfigError(DaslError):
    """The address, token or configuration file cannot be used."""


class ConnectionFailed(DaslError):
    """The server is down, unreachable, or not a DASL server."""

    _text = "No DASL server answers at {} ({}). Start one with `dasl serve`, or set DASL_URL to another address."

    def __init__(self, url: str, reason: str) -> None:
        self.url, self.reason = url, reason
        super().__init__(self._text.format(url, reason))


class StoreUnreachable(ConnectionFailed):
    """The object store that a download was redirected to does not answer."""

    _text = (
        "The artifact store does not answer at {} ({}). The server sends downloads there; if this machine cannot "
        "reach that address, ask its operator to change DASL_S3_PUBLIC_ENDPOINT."
    )


@dataclass(frozen=True)
class FieldError:
    """One invalid field of a request: its name, the problem, the value and what is expected."""

    field: str
    message: str
    given: str = ""
    expected: str = ""

    @property
    def reason(self) -> str:
        """`field: message`."""
        return f"{self.field}: {self.message}" if self.field else self.message

    def __str__(self) -> str:
        extras = []
        if self.given:
            extras.append(f"given {self.given}")
        if self.expected:
            extras.append(f"expected {self.expected}")
        return f"{self.reason} ({'; '.join(extras)})" if extras else self.reason


class ApiError(DaslError):
    """The server refused a request. `problem` is its RFC 9457 document (may be empty).

    Args:
        is_remote: whether the server is on another machine.
    """

    def __init__(self, status: int, problem: Mapping[str, Any], is_remote: bool = False) -> None:
        self.status = status
        self.is_remote = is_remote
        self.problem = dict(problem)
        self.type = str(self.problem.get("type") or "about:blank")
        self.title = str(self.problem.get("title") or f"HTTP {status}")
        self.detail = str(self.problem.get("detail") or "")
        self.errors = _field_errors(self.problem.get("errors"))
        super().__init__(self._text())

    def _text(self) -> str:
        # Leave out a detail that only repeats the fields' messages.
        redundant = bool(self.errors) and all(error.reason in self.detail for error in self.errors)
        if redundant and len(self.errors) == 1:
            lines = [str(self.errors[0])]
        else:
            head = f"{len(self.errors)} fields are invalid:" if redundant else self.detail
            lines = [head or self.title, *(f"  {error}" for error in self.errors)]
        if self.status == 401 and self.type != LOGIN_FAILED:
            lines.append(
                f"  Set DASL_TOKEN to a token of this server. {where_from(self.is_remote)}."
            )
        return "\n".join(lines)


def where_from(is_remote: bool) -> str:
    """Explain where to get a token of the server."""
    return "Ask your administrator for a new token" if is_remote else "`dasl serve` prints a token"


class StaleAttempt(ApiError):
    """The worker's attempt was superseded or its job has ended; its process must exit."""


class InvalidSpec(DaslError):
    """A spec cannot be read, or is invalid."""


class JobFailed(DaslError):
    """A job failed, was cancelled, or was paused at its time limit during a `wait`. `job` is its state."""

    def __init__(self, job: Any) -> None:
        self.job = job
        reason = f": {job.error.message}" if job.error is not None else ""
        super().__init__(f"Job {job.id} {job.status}{reason}")


class DatasetFailed(DaslError):
    """The ingest of a data set failed during a `wait`. `dataset` is its final state."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        super().__init__(f"Data set {dataset.name} failed: {dataset.error_message or 'no reason'}")


class TaskFailed(DaslError):
    """A task of the cluster failed during a `wait`. `task` is its final state."""

    kind = "Task"

    def __init__(self, task: Any) -> None:
        self.task = task
        reason = "no reason" if task.error is None else task.error.message
        super().__init__(f"{self.kind} {task.id} failed: {reason}")


class PreviewFailed(TaskFailed):
    """A preview failed during a `wait`."""

    kind = "Preview"


class PreparationFailed(TaskFailed):
    """A preparation failed during a `wait`."""

    kind = "Preparation"


class ModelRunFailed(TaskFailed):
    """A run of a finished model failed during a `wait`."""

    kind = "Model run"


class WaitTimeout(DaslError, TimeoutError):
    """A `wait` reached its timeout; the job or ingest continues."""


class DownloadFailed(DaslError):
    """A downloaded file is incomplete, or differs from the server's manifest."""


class UploadFailed(DaslError):
    """Files cannot be uploaded, or changed during the upload."""


def _field_errors(raw: object) -> list[FieldError]:
    if not isinstance(raw, list):
        return []
    return [
        FieldError(
            field=str(item.get("field") or ""),
            message=str(item.get("message") or "is invalid"),
            given=_short(item.get("given")),
            expected=_short(item.get("expected")),
        )
        for item in raw
        if isinstance(item, dict)
    ]


def _short(value: object) -> str:
    return "" if value is None else cut(str(value), 200)
