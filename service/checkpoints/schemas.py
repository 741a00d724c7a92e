"""Request and response models of checkpoints and artifacts."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from service.protocol import FileEntry


class CheckpointPatch(BaseModel):
    """Changes to a checkpoint."""

    model_config = ConfigDict(extra="forbid")

    pinned: Annotated[bool, Field(description="Keep it regardless of the job's settings.")]


class CheckpointView(BaseModel):
    """A registered checkpoint; `final` marks the one that was saved at the end of training."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    job_id: str
    attempt: int
    step: int
    epoch: float
    state: str
    final: bool
    pinned: bool
    files: list[FileEntry]
    metrics: dict[str, Any]
    created_at: datetime


class DeletedCheckpoints(BaseModel):
    """How many checkpoints of a job were deleted, and the bytes that their files took."""

    deleted: int
    bytes: int


class ArtifactView(BaseModel):
    """A file that a job wrote, such as a plot or a table."""

    model_config = ConfigDict(from_attributes=True)

    name: str
    attempt: int
    size: int
    sha256: str
    content_type: str
    created_at: datetime
