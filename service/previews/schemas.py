"""Requests about previews."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

MOST_IMAGES = 64


class PreviewRequest(BaseModel):
    """Views of the first images of a training by this spec."""

    model_config = ConfigDict(extra="forbid")

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
