"""What can go wrong between a client and the service, each as one sentence that a person can act on.

This module imports nothing but the standard library, so that the command line can name these errors
without paying for httpx and pydantic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

STALE_ATTEMPT = "stale-attempt"
"""Last part of the problem `type` with which the worker door refuses an attempt that was replaced."""


class DaslError(Exception):
    """Base of every error that the SDK raises on purpose.

    All of them can be pickled, because they cross from one process to another. An exception is
    rebuilt from its message, so a subclass whose `__init__` takes anything else has a `__reduce__`.
    """


class ConfigError(DaslError):
    """The address, token or configuration file cannot be used."""


class ConnectionFailed(DaslError):
    """No usable answer came from the server: it is down, unreachable, or not a DASL server."""

    def __init__(self, url: str, reason: str) -> None:
        self.url = url
        self.reason = reason
        super().__init__(
            f"No DASL server answers at {url} ({reason}). Start one with `dasl serve`, "
            "or name another one in DASL_URL."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.url, self.reason)


@dataclass(frozen=True)
class FieldError:
    """One refused field of a request: where, why, what was given and what would do."""

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
    """The server refused a request. `problem` is its RFC 9457 document (may be empty)."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.problem = dict(problem)
        self.type = str(self.problem.get("type") or "about:blank")
        self.title = str(self.problem.get("title") or f"HTTP {status}")
        self.detail = str(self.problem.get("detail") or "")
        self.errors = _field_errors(self.problem.get("errors"))
        super().__init__(self._sentence())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.status, self.problem)

    def _sentence(self) -> str:
        # The list of fields tells what a detail made of the same fields tells, and more.
        told = bool(self.errors) and all(error.reason in self.detail for error in self.errors)
        if told and len(self.errors) == 1:
            lines = [str(self.errors[0])]
        else:
            head = f"{len(self.errors)} fields are not accepted:" if told else self.detail
            lines = [head or self.title, *(f"  {error}" for error in self.errors)]
        if self.status == 401:
            lines.append("  Set DASL_TOKEN to a token of this server; `dasl serve` prints one.")
        return "\n".join(lines)


class StaleAttempt(ApiError):
    """The attempt of a worker was replaced or its job has ended: its process must stop now."""


class InvalidSpec(DaslError):
    """A spec that cannot be sent: not readable, or refused by this machine's own JobSpec."""


class JobFailed(DaslError):
    """A job that was waited for ended as failed or cancelled. `job` is its last state."""

    def __init__(self, job: Any) -> None:
        self.job = job
        reason = f": {job.error.message}" if job.error is not None else ""
        super().__init__(f"Job {job.id} {job.status}{reason}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.job,)


class DatasetFailed(DaslError):
    """A data set that was waited for could not be ingested. `dataset` is its last state."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        super().__init__(f"Data set {dataset.name} failed: {dataset.error_message or 'no reason'}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.dataset,)


class WaitTimeout(DaslError, TimeoutError):
    """The time given to a `wait` is over; what was waited for goes on."""


class DownloadFailed(DaslError):
    """A file was not fetched whole, or its content is not what the server's manifest promises."""


def _field_errors(raw: object) -> list[FieldError]:
    if not isinstance(raw, list):
        return []
    return [
        FieldError(
            field=str(item.get("field") or ""),
            message=str(item.get("message") or "is not accepted"),
            given=_short(item.get("given")),
            expected=_short(item.get("expected")),
        )
        for item in raw
        if isinstance(item, dict)
    ]


def _short(value: object, limit: int = 200) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
