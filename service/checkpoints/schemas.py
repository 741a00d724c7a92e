"""Checkpoints and artifacts as the API shows them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from service.protocol import FileEntry


class CheckpointPatch(BaseModel):
    """What may be changed of a checkpoint."""

    model_config = ConfigDict(extra="forbid")

    pinned: Annotated[bool, Field(description="Keep it whatever the job's settings say.")]


class CheckpointView(BaseModel):
    """A registered checkpoint; `final` is the one of the end of training."""

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


class ArtifactView(BaseModel):
    """A file that a job left: a picture, a table."""

    model_config = ConfigDict(from_attributes=True)

    name: str
    attempt: int
    size: int
    sha256: str
    content_type: str
    created_at: datetime
