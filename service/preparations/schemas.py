"""Requests about preparations."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field


class PreparationRequest(BaseModel):
    """Images to decode for trainings by this spec."""

    model_config = ConfigDict(extra="forbid")

    spec: Annotated[
        dict[str, Any],
        Field(
            description="The spec of a job, or only the relevant fields: `backbone.image_size`, "
            "`backbone.in_channels`, `train.image_cache`. `dataset` is ignored."
        ),
    ] = {}
