"""Log records as lines of text or JSON, with context fields such as the job, and without secrets.

Uses only the standard library, because training processes import it as well.
"""

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

_NO_FIELDS: Fields = MappingProxyType({})
_context: ContextVar[Fields] = ContextVar("log_context", default=_NO_FIELDS)
REQUESTS = "service.requests"
"""Name of the logger of answered requests."""
_CHATTY = ("httpx", "alembic", "uvicorn.error")
# Secrets that the text of an exception may contain. DASL's tokens are recognized by their form.
_SECRETS = (
    (re.compile(r"\bdasl_[A-Za-z0-9_-]{43}"), "dasl_***"),
    (re.compile(r"\bwhsec_[A-Za-z0-9+/=]+"), "whsec_***"),
    (re.compile(r"(?i)\b(bearer\s+)[^\s\"',]+"), r"\1***"),
    (re.compile(r"(://[^/\s:@]*:)[^\s@]+@"), r"\1***@"),
    (re.compile(r"(?i)\b(password\s*=\s*)[^\s\"',]+"), r"\1***"),
)


@contextmanager
def log_fields(**fields: object) -> Iterator[None]:
    """Add these fields to every record of the block."""
    token = _context.set({**_context.get(), **fields})
    try:
        yield
    finally:
        _context.reset(token)


def set_context(fields: Fields) -> None:
    """Set the fields of all records of the current task; the mapping is read at each record."""
    _context.set(fields)


def configure(style: LogFormat, *, secrets: Iterable[str] = (), **fields: object) -> None:
    """Write the log records of this process to stderr, and only there.

    Args:
        secrets: texts to mask in every record.
        fields: added to every record.
    """
    handler = logging.StreamHandler(sys.stderr)
    kind = JsonLines if style == "json" else TextLines
    handler.setFormatter(kind(secrets, fields))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    if style == "text":
        # Log failed requests only, as a person who watches the log does not need every poll.
        logging.getLogger(REQUESTS).setLevel(logging.WARNING)


class _Lines(logging.Formatter):
    """Format a record as a line, with its fields and without secrets."""

    def __init__(self, secrets: Iterable[str] = (), fields: Fields | None = None) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")
        self._secrets = sorted(filter(None, secrets), key=len, reverse=True)
        self._fields = dict(fields or {})

    def all_fields(self, record: logging.LogRecord) -> dict[str, object]:
        """Return all fields of a record: of the process, the task and the record."""
        record_fields = getattr(record, "fields", {})
        fields = {**self._fields, **_context.get(), **record_fields}
        return {name: value for name, value in fields.items() if value is not None}

    def without_secrets(self, text: str) -> str:
        """Replace every secret by `***`."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        for pattern, replacement in _SECRETS:
            text = pattern.sub(replacement, text)
        return text


class TextLines(_Lines):
    """Lines of text: `2026-01-31 12:00:00,000 WARNING message [job=job_... attempt=2]`, tracebacks below."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={value}" for name, value in self.all_fields(record).items())
        return super().formatMessage(record) + (f" [{fields}]" if fields else "")

    def format(self, record: logging.LogRecord) -> str:
        return self.without_secrets(super().format(record))


class JsonLines(_Lines):
    """JSON objects: `time`, `level`, `logger`, `message`, the fields, and `exception` if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **self.all_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        for name, value in line.items():
            if not isinstance(value, int | float):
                line[name] = self.without_secrets(str(value))
        return json.dumps(line)
