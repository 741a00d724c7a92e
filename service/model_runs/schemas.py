"""Requests about runs of finished models."""

from typing import Annotated

from pydantic import Field

from dasl_core.spec import Evaluate
from dasl_core.spec.base import StrictModel
from dasl_core.vocabulary import EmbeddingFormat, EmbeddingType, ExportFormat, FeatureKind

DatasetName = Annotated[
    str, Field(min_length=1, max_length=300, description="Id or name of the data set.")
]
Version = Annotated[
    int | None,
    Field(
        strict=True, ge=1, le=999_999_999, description="Version of the data set; null: the newest."
    ),
]


class EvaluationRequest(StrictModel):
    """Images to evaluate a checkpoint's backbone on."""

    dataset: DatasetName
    version: Version = None
    settings: Annotated[
        Evaluate,
        Field(
            description="Like the section `evaluate` of a spec. `holdout` chooses the images of this data set that are "
            "evaluated; null: all."
        ),
    ] = Field(default_factory=Evaluate)


class EmbeddingRequest(StrictModel):
    """Images to embed with a checkpoint's backbone."""

    dataset: DatasetName
    version: Version = None
    features: Annotated[
        FeatureKind,
        Field(
            description="pooled: what training evaluates; cls: the class token; patch: a vector for each patch."
        ),
    ] = "pooled"
    format: EmbeddingFormat = "parquet"
    normalize: Annotated[bool, Field(strict=True, description="Scale each vector to length 1.")] = (
        False
    )
    dtype: EmbeddingType = "float32"


class ExportRequest(StrictModel):
    """The format to export a checkpoint's backbone to."""

    format: ExportFormat
