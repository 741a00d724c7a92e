"""Requests about preparations."""

from typing import Annotated, Any

from pydantic import Field

from dasl_core.spec.base import StrictModel


class PreparationRequest(StrictModel):
    """Images to decode for trainings by this spec."""

    spec: Annotated[
        dict[str, Any],
        Field(
            description="The spec of a job, or only the relevant fields: `backbone.image_size`, "
            "`backbone.in_channels`, `train.image_cache`. `dataset` is ignored."
        ),
    ] = {}
