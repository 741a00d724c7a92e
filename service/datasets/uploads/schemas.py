"""Requests about uploads."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from dasl_core.spec.base import problem
from dasl_core.spec.errors import LINE_PATTERN
from dasl_core.vocabulary import FILE_NAME, LONGEST_FILE_NAME

UPLOAD_ENDINGS = (".tar", ".zip", ".parquet", ".npy")
"""Files that hold images; lists only name them."""


def _holds_images(filename: str) -> str:
    if not filename.lower().endswith(UPLOAD_ENDINGS):
        expected = f"one file that ends in {', '.join(UPLOAD_ENDINGS)}; pack a folder as an uncompressed tar"
        raise problem("cannot be uploaded", filename, expected)
    return filename


class UploadRequest(BaseModel):
    """A file of images that will be sent in chunks.

    Attributes:
        sha256: SHA-256 of the whole file, checked after the last chunk.
        fingerprint: any text by which a client recognizes the file when it resumes.
    """

    model_config = ConfigDict(extra="forbid")

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
