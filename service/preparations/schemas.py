"""Requests about preparations."""

from __future__ import annotations

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
