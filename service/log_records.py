"""Log records as lines, text for people or JSON for programs, with what is known of their surroundings.

Standard library only: the training processes use it, too.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Literal

LogFormat = Literal["text", "json"]
Fields = Mapping[str, object]

_NOTHING: Fields = MappingProxyType({})
_surroundings: ContextVar[Fields] = ContextVar("surroundings", default=_NOTHING)
REQUESTS = "service.requests"
"""The logger of requests that were answered."""
_CHATTY = ("httpx", "alembic", "uvicorn.error")
# What could stand in the text of an exception. Tokens of ours are told by their form.
_SECRETS = (
    (re.compile(r"\bdasl_[A-Za-z0-9_-]{43}"), "dasl_***"),
    (re.compile(r"(?i)\b(bearer\s+)[^\s\"',]+"), r"\1***"),
    (re.compile(r"(://[^/\s:@]*:)[^\s@]+@"), r"\1***@"),
    (re.compile(r"(?i)\b(password\s*=\s*)[^\s\"',]+"), r"\1***"),
)


@contextmanager
def about(**fields: object) -> Iterator[None]:
    """Every record made in this block, and in what it calls, carries these fields."""
    token = _surroundings.set({**_surroundings.get(), **fields})
    try:
        yield
    finally:
        _surroundings.reset(token)


def set_surroundings(fields: Fields) -> None:
    """As `about`, until the current task ends. A mapping that changes is read at each record."""
    _surroundings.set(fields)


def configure(style: LogFormat, *, secrets: Iterable[str] = (), **fields: object) -> None:
    """Write records of this process to stderr, and nothing else anywhere.

    Args:
        secrets: texts that must never appear, whoever logs them.
        fields: go with every record.
    """
    handler = logging.StreamHandler(sys.stderr)
    kind = JsonLines if style == "json" else TextLines
    handler.setFormatter(kind(secrets, fields))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    if style == "text":
        # Who reads along wants to see what went wrong, not that somebody watches a job.
        logging.getLogger(REQUESTS).setLevel(logging.WARNING)


class _Lines(logging.Formatter):
    """Makes a line of a record, without any secret."""

    def __init__(self, secrets: Iterable[str] = (), fields: Fields | None = None) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")
        self._secrets = sorted(filter(None, secrets), key=len, reverse=True)
        self._fields = dict(fields or {})

    def fields_of(self, record: logging.LogRecord) -> dict[str, object]:
        """What is known beside the message: of the process, of the task, and of the record."""
        own = getattr(record, "fields", {})
        fields = {**self._fields, **_surroundings.get(), **own}
        return {name: value for name, value in fields.items() if value is not None}

    def without_secrets(self, text: str) -> str:
        """Put `***` in the place of every secret."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        for pattern, harmless in _SECRETS:
            text = pattern.sub(harmless, text)
        return text


class TextLines(_Lines):
    """`2026-01-31 12:00:00,000 WARNING message [job=job_... attempt=2]`, tracebacks below."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.formatMessage`."""
        known = " ".join(f"{name}={value}" for name, value in self.fields_of(record).items())
        return super().formatMessage(record) + (f" [{known}]" if known else "")

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        return self.without_secrets(super().format(record))


class JsonLines(_Lines):
    """One JSON object: `time`, `level`, `logger`, `message`, the fields, `exception` if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **self.fields_of(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps({name: self._plain(value) for name, value in line.items()})

    def _plain(self, value: object) -> object:
        return value if isinstance(value, int | float) else self.without_secrets(str(value))
