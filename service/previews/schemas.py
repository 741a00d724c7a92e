"""Requests about previews."""

from typing import Annotated, Any

from pydantic import Field

from dasl_core.spec.base import StrictModel

MOST_IMAGES = 64


class PreviewRequest(StrictModel):
    """Views of the first images of a training by this spec."""

    spec: Annotated[
        dict[str, Any],
        Field(
            description="The spec of a job, or only the relevant sections: `method`, `augment`, `backbone`, `train`. "
            "`dataset` is ignored."
        ),
    ]
    images: Annotated[int, Field(ge=1, le=MOST_IMAGES)] = 8
    version: Annotated[
        int | None,
        Field(ge=1, le=999_999_999, description="Version of the data set; null: the newest."),
    ] = None
