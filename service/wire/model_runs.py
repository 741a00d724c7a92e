"""Runs of finished models, and results of searches."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from service.wire.base import Answer, StoredObject
from service.wire.checkpoints import FileEntry

Finite = Annotated[float, Field(allow_inf_nan=False, strict=True)]


class ModelRunView(Answer):
    """A run of a finished model: queued, running, succeeded or failed.

    While it runs, `progress` has the `phase`, and its `images_read`, `images_total` and estimated `seconds_left`. The
    `result` of an evaluation has `metrics` by subject; the `result` of an embedding has the number of `images`, the `shape`
    of the features of an image, and `images_per_second`.
    """

    id: str
    kind: str
    checkpoint_id: str
    dataset_id: str | None
    dataset_version: int | None
    settings: dict[str, Any]
    state: str
    progress: StoredObject | None
    result: dict[str, Any] | None
    files: list[FileEntry]
    size: int | None
    """Bytes of its files, once it has succeeded."""
    error: StoredObject | None
    created_at: datetime
    finished_at: datetime | None


class NeighborEntry(Answer):
    """An image near another one; `similarity` is the cosine."""

    key: str
    label: str | None = None
    similarity: Finite


class NeighborsView(Answer):
    """The nearest images of an embedding by the cosine of their features, the nearest first."""

    embedding_id: str
    dataset_id: str
    dataset_version: int
    neighbors: list[NeighborEntry]
