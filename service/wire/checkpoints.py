"""Checkpoints and artifacts, and the manifest of their files."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import ConfigDict, Field, StrictBool, StringConstraints

from dasl_core.vocabulary import FILE_NAME, LONGEST_FILE_NAME
from service.wire.base import Answer

FileName = Annotated[
    str, StringConstraints(min_length=1, max_length=LONGEST_FILE_NAME, pattern=FILE_NAME)
]
MAX_SIZE = 10**14
"""Most bytes of a file and of a checkpoint: 100 TB, of which the sum of 92,000 fits into 64 bits."""
Size = Annotated[int, Field(ge=0, le=MAX_SIZE)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class FileEntry(Answer):
    """A file of a checkpoint's manifest."""

    model_config = ConfigDict(extra="forbid")

    name: FileName
    size: Size
    sha256: Sha256


class Verification(Answer):
    """The result of `dasl verify` for a checkpoint."""

    model_config = ConfigDict(extra="forbid")

    certificate: Sha256
    """SHA-256 of the checkpoint's `certificate.json`."""
    passed: StrictBool
    summary: Annotated[str, Field(min_length=1, max_length=500)]
    """What was checked."""


class VerificationView(Verification):
    """A result of `dasl verify`, with the time at which it was reported."""

    at: datetime


class CheckpointView(Answer):
    """A registered checkpoint; `final` marks the one that was saved at the end of training."""

    id: str
    job_id: str
    attempt: int
    step: int
    epoch: float
    state: str
    final: bool
    pinned: bool
    verification: VerificationView | None
    """The newest one; null: the run has not been verified."""
    files: list[FileEntry]
    metrics: dict[str, Any]
    created_at: datetime

    @property
    def size(self) -> int:
        """Total size of all files in bytes."""
        return sum(file.size for file in self.files)


class DeletedCheckpoints(Answer):
    """Number of deleted checkpoints of a job, and the size of their files in bytes."""

    deleted: int
    bytes: int


class ArtifactView(Answer):
    """A file that a job wrote, such as a plot or a table."""

    name: str
    attempt: int
    size: int
    sha256: str
    content_type: str
    created_at: datetime
