"""Request and response models of runs of finished models."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from dasl_core.spec import Evaluate
from dasl_core.vocabulary import EmbeddingFormat, EmbeddingType, ExportFormat, FeatureKind
from service.protocol import FileEntry, NeighborEntry

DatasetName = Annotated[
    str, Field(min_length=1, max_length=300, description="Id or name of the data set.")
]
Version = Annotated[
    int | None,
    Field(strict=True, ge=1, le=999_999_999, description="Of the data set; null: the newest."),
]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


class EvaluationRequest(_Request):
    """Images to evaluate a checkpoint's backbone on."""

    dataset: DatasetName
    version: Version = None
    settings: Annotated[
        Evaluate,
        Field(
            description="As the section `evaluate` of a spec. `holdout` chooses the images of this data set that are "
            "evaluated; null: all."
        ),
    ] = Field(default_factory=Evaluate)


class EmbeddingRequest(_Request):
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


class ExportRequest(_Request):
    """The format to export a checkpoint's backbone to."""

    format: ExportFormat


class ModelRunView(BaseModel):
    """A run of a finished model: queued, running, succeeded or failed.

    While it runs, `progress` has `images_read` of `images_total` in its `phase`, and `seconds_left` as estimated. An
    evaluation that succeeded has `metrics` in its `result`, by subject; an embedding the number of `images`, the `shape` of
    the features of each, and `images_per_second`.
    """

    model_config = ConfigDict(from_attributes=True)

    id: str
    kind: str
    checkpoint_id: str
    dataset_id: str | None
    dataset_version: int | None
    settings: dict[str, Any]
    state: str
    progress: dict[str, Any] | None
    result: dict[str, Any] | None
    files: list[FileEntry]
    size: int | None
    """Bytes of its files, once it has succeeded."""
    error: dict[str, Any] | None
    created_at: datetime
    finished_at: datetime | None


class NeighborsView(BaseModel):
    """The images of an embedding that are nearest to an image by the cosine of their features, the nearest first."""

    embedding_id: str
    dataset_id: str
    dataset_version: int
    neighbors: list[NeighborEntry]
