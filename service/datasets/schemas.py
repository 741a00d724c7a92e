"""Request and response models of data sets."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints

from dasl_core.spec.base import problem
from dasl_core.spec.errors import NAME_PATTERN
from dasl_core.spec.locations import local_path
from service.ids import is_id

_FOLDER = "an absolute path, or a file:// URI of this machine"


def _not_an_id(name: str) -> str:
    if is_id("ds", name):
        raise problem("must not look like the id of a data set", name, "a name of your own")
    if name in (".", ".."):
        raise problem("cannot name a data set", name, "a name other than '.' and '..'")
    return name


def _plain_path(uri: str) -> str:
    """Normalize a plain path or a file:// URI to the path that is stored."""
    try:
        path = local_path(uri)
    except ValueError as error:
        raise problem(str(error), uri, _FOLDER) from error
    if ".." in path.parts:
        raise problem("contains '..'", uri, _FOLDER + " without '..'")
    return str(path)


# As `dasl_core.spec` accepts them in a job: no slash, no control character.
DatasetName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=200, pattern=NAME_PATTERN),
    AfterValidator(_not_an_id),
]
DatasetUri = Annotated[
    str, StringConstraints(min_length=1, max_length=4096), AfterValidator(_plain_path)
]


class DatasetRequest(BaseModel):
    """A folder of images to register."""

    model_config = ConfigDict(extra="forbid")

    name: DatasetName
    uri: DatasetUri


class DatasetView(BaseModel):
    """A data set: pending, ingesting, ready or failed; `report` says what was skipped and why.

    While it is ingested, `progress` has `images_read` of the `images_total` that were found so far.
    """

    model_config = ConfigDict(from_attributes=True)

    id: str
    name: str
    uri: str
    state: str
    facts: dict[str, Any] | None
    report: dict[str, Any] | None
    error: dict[str, Any] | None
    progress: dict[str, Any] | None
    created_at: datetime
