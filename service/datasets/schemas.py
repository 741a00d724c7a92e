"""Data sets as the API shows them."""

from __future__ import annotations

from datetime import datetime
from pathlib import PurePosixPath
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints

from service.ids import is_id


def _not_an_id(name: str) -> str:
    if is_id("ds", name):
        raise ValueError("must not look like the id of a data set")
    if name in (".", ".."):
        raise ValueError("must not be '.' or '..'")
    return name


def _local_path(uri: str) -> str:
    """The absolute path that a plain path or a file:// URI names."""
    path = uri
    if "://" in uri:
        parts = urlsplit(uri)
        if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
            raise ValueError("must be an absolute path or a file:// URI of this machine")
        path = unquote(parts.path)
    if not path.startswith("/") or "\x00" in path:
        raise ValueError("must be an absolute path or a file:// URI of this machine")
    if ".." in PurePosixPath(path).parts:
        raise ValueError("must not climb with '..'")
    return str(PurePosixPath(path))


# As `dasl_core.spec` takes them in a job: no slash, no control character.
DatasetName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f/\\]+$"),
    AfterValidator(_not_an_id),
]
DatasetUri = Annotated[
    str, StringConstraints(min_length=1, max_length=4096), AfterValidator(_local_path)
]


class DatasetRequest(BaseModel):
    """A folder of images to register."""

    model_config = ConfigDict(extra="forbid")

    name: DatasetName
    uri: DatasetUri


class DatasetView(BaseModel):
    """A data set: pending, ingesting, ready or failed; `report` says what was skipped and why."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    name: str
    uri: str
    state: str
    facts: dict[str, Any] | None
    report: dict[str, Any] | None
    error: dict[str, Any] | None
    created_at: datetime
