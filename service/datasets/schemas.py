"""Requests about data sets and uploads."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from dasl_core.spec.base import StrictModel, problem
from dasl_core.spec.errors import LINE_PATTERN, NAME_PATTERN
from dasl_core.spec.locations import local_path
from dasl_core.spec.problems import FieldProblem, SpecError
from dasl_core.spec.source import SOURCE_KINDS, SourceOptions, remote_scheme, unread_options
from dasl_core.vocabulary import FILE_NAME, LONGEST_FILE_NAME
from service.ids import is_id

_FOLDER = "an absolute path, a file:// URI, or a URI of an object store such as s3://bucket/folder"


def _not_an_id(name: str) -> str:
    if is_id("ds", name):
        raise problem("must not look like the id of a data set", name, "a name of your own")
    if re.search("@[1-9][0-9]*$", name):
        raise problem("ends like the name of a version", name, "a name without @NUMBER at its end")
    if name in (".", ".."):
        raise problem("cannot name a data set", name, "a name other than '.' and '..'")
    return name


def _location(uri: str) -> str:
    """Normalize a path or a URI; a URI of this machine becomes a path."""
    try:
        if remote_scheme(uri) is not None:
            if ".." in uri.split("/") or not uri.isprintable():
                raise problem("contains '..' or a control character", uri, _FOLDER)
            return uri.rstrip("/")
        path = local_path(uri)
    except ValueError as error:
        raise problem(str(error), uri, _FOLDER) from error
    if ".." in path.parts:
        raise problem("contains '..'", uri, _FOLDER + " without '..'")
    return str(path)


# The same names as `dasl_core.spec` accepts in a job: no slash, no control character.
DatasetName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=200, pattern=NAME_PATTERN),
    AfterValidator(_not_an_id),
]
DatasetUri = Annotated[
    str, StringConstraints(min_length=1, max_length=4096), AfterValidator(_location)
]


UPLOAD_ENDINGS = (".tar", ".zip", ".parquet", ".npy")
"""Files that hold images; lists only name them."""


def _holds_images(filename: str) -> str:
    if not filename.lower().endswith(UPLOAD_ENDINGS):
        expected = f"one file that ends in {', '.join(UPLOAD_ENDINGS)}; pack a folder as an uncompressed tar"
        raise problem("cannot be uploaded", filename, expected)
    return filename


class UploadRequest(StrictModel):
    """A file of images that will be sent in chunks.

    Attributes:
        sha256: SHA-256 of the whole file, checked after the last chunk.
        fingerprint: any text by which a client recognizes the file when it resumes.
    """

    filename: Annotated[
        str,
        StringConstraints(min_length=1, max_length=LONGEST_FILE_NAME, pattern=FILE_NAME),
        AfterValidator(_holds_images),
    ]
    size: Annotated[int, Field(ge=1, le=2**62, strict=True)]
    sha256: Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")] | None = None
    fingerprint: (
        Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=LINE_PATTERN)] | None
    ) = None


class DatasetRequest(StrictModel):
    """Images to register: a folder, archive, list, table or array, on the server or in an object store.

    Instead of `uri`, `upload` describes a file whose content follows in chunks.
    """

    name: DatasetName
    uri: DatasetUri | None = None
    upload: UploadRequest | None = None
    source: SourceOptions = SourceOptions()

    @model_validator(mode="after")
    def _check(self) -> DatasetRequest:
        if (self.uri is None) == (self.upload is None):
            message = "missing required field; or give upload"
            if self.uri is not None:
                message = "has no effect with upload; remove one of them"
            raise SpecError([FieldProblem("uri", message)])
        # A folder may hold archives or tables: `check_columns` looks into it.
        place = self.upload.filename if self.upload else self.uri or ""
        kind = SOURCE_KINDS.get(PurePosixPath(place).suffix.lower())
        problems = unread_options(kind, place, self.source)
        if not problems and self.upload is not None and self.source.links == "follow":
            problems = [FieldProblem("links", "has no effect with upload; remove it", "follow")]
        if problems:
            raise SpecError([replace(each, field=f"source.{each.field}") for each in problems])
        return self
