"""Tables of what people request of data sets and checkpoints beside jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    ForeignKey,
    Index,
    LargeBinary,
    String,
    Text,
)
from sqlalchemy.orm import Mapped, declared_attr, mapped_column

from service.db.models.base import Base, Object


class Task(Base):
    """Something that people request of a data set, which is queued, and runs beside trainings."""

    __abstract__ = True

    @declared_attr.directive
    def __table_args__(cls) -> tuple[Any, ...]:  # a class
        # Lists are ordered by id.
        columns = (("dataset_id", "id"), ("state", "id"), ("token_id", "state"))
        return tuple(Index(None, *each) for each in columns)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(100))
    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"))
    state: Mapped[str] = mapped_column(String(20))
    error: Mapped[Object | None]
    # The token that requested it and whose limit it uses.
    token_id: Mapped[str | None] = mapped_column(String(40))
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    # Hidden from every endpoint; the dispatcher stops its run and removes its files, then the row.
    deleted_at: Mapped[datetime | None]


class Preview(Task):
    """Views of a data set as a spec draws them; its runs are `PreviewRun`s."""

    __tablename__ = "previews"

    dataset_version: Mapped[int]
    # As of a job: the spec as it was submitted, and resolved.
    spec: Mapped[Object]
    resolved: Mapped[Object]
    spec_version: Mapped[int]
    images: Mapped[int]
    # The folder of the files, a list of {name, size, sha256}, and their bytes, of a preview that succeeded.
    uri: Mapped[str | None] = mapped_column(Text)
    files: Mapped[list[Object]]
    size: Mapped[int | None] = mapped_column(BigInteger)


class Preparation(Task):
    """Decoding of a version of a data set into the cache, before a job needs it; its runs are `PreparationRun`s."""

    __tablename__ = "preparations"

    dataset_version: Mapped[int]
    # What determines the decoded images, as in a resolved spec.
    image_size: Mapped[int]
    channels: Mapped[int]
    image_cache: Mapped[str] = mapped_column(String(20))
    # Of the running preparation (`service.worker_api.ingest_estimate.IngestEstimate`).
    progress: Mapped[Object | None]
    # Of one that succeeded (`service.protocol.PreparationResult`).
    result: Mapped[Object | None]


class ModelRun(Task):
    """Work of a finished model, that of a checkpoint: an evaluation, an embedding or an export; its runs are
    `ModelRunRun`s. It is deleted with its checkpoint, which is no foreign key because the row may be removed before."""

    __tablename__ = "model_runs"

    # Null: an export reads no images.
    dataset_id: Mapped[str | None] = mapped_column(ForeignKey("datasets.id"))  # type: ignore[assignment]
    dataset_version: Mapped[int | None]
    checkpoint_id: Mapped[str] = mapped_column(String(40), index=True)
    # `service.protocol.ModelRunKind`, and its settings without "auto" values.
    kind: Mapped[str] = mapped_column(String(20))
    settings: Mapped[Object]
    # Of the running one, as of a preparation.
    progress: Mapped[Object | None]
    # Of one that succeeded: what it has measured, and its files as those of a preview.
    result: Mapped[Object | None]
    uri: Mapped[str | None] = mapped_column(Text)
    files: Mapped[list[Object]]
    size: Mapped[int | None] = mapped_column(BigInteger)


class Search(Task):
    """A process that finds neighbors among the images of an embedding, and ends when no questions arrive any more; its runs
    are `SearchRun`s."""

    __tablename__ = "searches"

    embedding_id: Mapped[str] = mapped_column(String(40), index=True)
    asked_at: Mapped[datetime]


class SearchQuery(Base):
    """A question to the search of an embedding; its row is removed with the answer."""

    __tablename__ = "search_queries"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    embedding_id: Mapped[str] = mapped_column(String(40), index=True)
    # The key of an image of the embedding, or else the content of an image file.
    key: Mapped[str | None] = mapped_column(Text)
    image: Mapped[bytes | None] = mapped_column(LargeBinary)
    k: Mapped[int]
    created_at: Mapped[datetime]
    # `service.protocol.QueryAnswer`, once there is one.
    answer: Mapped[Object | None]
