"""Requests about checkpoints and artifacts."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class CheckpointPatch(BaseModel):
    """Changes to a checkpoint."""

    model_config = ConfigDict(extra="forbid")

    pinned: Annotated[bool, Field(description="Keep it regardless of the job's settings.")]
