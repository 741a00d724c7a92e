"""Request and response models of preparations."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field


class PreparationRequest(BaseModel):
    """Images to decode as a training by this spec does."""

    model_config = ConfigDict(extra="forbid")

    spec: Annotated[
        dict[str, Any],
        Field(
            description="The spec of a job, or the parts of it that matter: `backbone.image_size`, "
            "`backbone.in_channels`, `train.image_cache`. `dataset` is that of the path."
        ),
    ] = {}


class PreparationView(BaseModel):
    """A preparation: queued, running, succeeded or failed.

    While it runs, `progress` has `images_read` of `images_total`, and `seconds_left` as estimated. `result` says how many
    images are `cached`, of `images`.
    """

    model_config = ConfigDict(from_attributes=True)

    id: str
    dataset_id: str
    dataset_version: int
    image_size: int
    channels: int
    image_cache: str
    state: str
    progress: dict[str, Any] | None
    result: dict[str, Any] | None
    error: dict[str, Any] | None
    created_at: datetime
    finished_at: datetime | None
