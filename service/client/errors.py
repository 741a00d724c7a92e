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
    """Base of every error that the SDK raises on purpose."""


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


@dataclass(frozen=True)
class FieldError:
    """One refused field of a request: where, why, what was given and what would do."""

    field: str
    message: str
    given: str | None = None
    expected: str | None = None

    def __str__(self) -> str:
        extras = []
        if self.given is not None:
            extras.append(f"given {self.given}")
        if self.expected:
            extras.append(f"expected {self.expected}")
        tail = f" ({'; '.join(extras)})" if extras else ""
        return f"{self.field}: {self.message}{tail}" if self.field else f"{self.message}{tail}"


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

    def _sentence(self) -> str:
        lines = [self.detail or self.title]
        # A detail that already tells the one field's problem needs no second telling.
        lines += [f"  {error}" for error in self.errors if str(error) not in self.detail]
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


class DatasetFailed(DaslError):
    """A data set that was waited for could not be ingested. `dataset` is its last state."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        super().__init__(f"Data set {dataset.name} failed: {dataset.error_message or 'no reason'}")


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
            given=None if item.get("given") is None else _short(item["given"]),
            expected=None if item.get("expected") is None else str(item["expected"]),
        )
        for item in raw
        if isinstance(item, dict)
    ]


def _short(value: object, limit: int = 80) -> str:
    text = str(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
