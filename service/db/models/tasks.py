"""Tables of tasks on data sets and checkpoints."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, LargeBinary, String, Text, text
from sqlalchemy.orm import Mapped, declared_attr, mapped_column

from service.db.models.base import Base, Object


class Task(Base):
    """A requested task on a data set, which is queued and runs in addition to trainings."""

    __abstract__ = True

    @declared_attr.directive
    def __table_args__(cls) -> tuple[Any, ...]:  # a class
        # For lists, which are ordered by id; for sums; for the removal of old ones.
        lists = (("dataset_id", "id"), ("state", "id"), ("token_id", "state"))
        columns: tuple[tuple[str, ...], ...] = (*lists, ("tenant",), ("finished_at",))
        deleted = text("deleted_at IS NOT NULL")  # for the few that are not removed yet
        return (
            *(Index(None, *names) for names in columns),
            Index(None, "deleted_at", sqlite_where=deleted, postgresql_where=deleted),
        )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(100))
    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"))
    state: Mapped[str] = mapped_column(String(20))
    error: Mapped[Object | None]
    # The token that requested it and whose limit it uses.
    token_id: Mapped[str | None] = mapped_column(String(40))
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    # A deleted task is hidden from every endpoint; the dispatcher stops its run and removes its files, then the row.
    deleted_at: Mapped[datetime | None]


class Preview(Task):
    """Views of a data set by a spec; its runs are `PreviewRun`s."""

    __tablename__ = "previews"

    dataset_version: Mapped[int]
    # The submitted and the resolved spec, like a job's.
    spec: Mapped[Object]
    resolved: Mapped[Object]
    spec_version: Mapped[int]
    images: Mapped[int]
    # Set if it succeeded: the folder of the files, a list of {name, size, sha256}, and their total size.
    uri: Mapped[str | None] = mapped_column(Text)
    files: Mapped[list[Object]]
    size: Mapped[int | None] = mapped_column(BigInteger)


class Preparation(Task):
    """Decoding of a version of a data set into the cache before a job needs it; its runs are `PreparationRun`s."""

    __tablename__ = "preparations"

    dataset_version: Mapped[int]
    # The settings of a resolved spec that determine the decoded images.
    image_size: Mapped[int]
    channels: Mapped[int]
    image_cache: Mapped[str] = mapped_column(String(20))
    # Progress of the running preparation (`service.worker_api.ingest_estimate.IngestEstimate`).
    progress: Mapped[Object | None]
    # Set if it succeeded (`service.protocol.PreparationResult`).
    result: Mapped[Object | None]


class ModelRun(Task):
    """An evaluation, embedding or export of a checkpoint; its runs are `ModelRunRun`s.

    It is deleted with its checkpoint. That is not a foreign key, because the checkpoint's row may be removed first.
    """

    __tablename__ = "model_runs"

    # Null for an export, which reads no images.
    dataset_id: Mapped[str | None] = mapped_column(ForeignKey("datasets.id"))  # type: ignore[assignment]
    dataset_version: Mapped[int | None]
    checkpoint_id: Mapped[str] = mapped_column(String(40))
    # `service.protocol.ModelRunKind`, and its settings without "auto" values.
    kind: Mapped[str] = mapped_column(String(20))
    settings: Mapped[Object]
    # Progress of the running one, like a preparation's.
    progress: Mapped[Object | None]
    # Set if it succeeded: its metrics, and its files like a preview's.
    result: Mapped[Object | None]
    uri: Mapped[str | None] = mapped_column(Text)
    files: Mapped[list[Object]]
    size: Mapped[int | None] = mapped_column(BigInteger)


Index(None, ModelRun.checkpoint_id, ModelRun.kind, ModelRun.state, ModelRun.id)


class Search(Task):
    """A process that finds neighbors among the images of an embedding and ends when no more questions arrive; its runs
    are `SearchRun`s."""

    __tablename__ = "searches"

    embedding_id: Mapped[str] = mapped_column(String(40), index=True)
    asked_at: Mapped[datetime]


class SearchQuery(Base):
    """A question to the search of an embedding; its row is removed with the answer."""

    __tablename__ = "search_queries"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    embedding_id: Mapped[str] = mapped_column(String(40), index=True)
    # The key of an image of the embedding, or the content of an image file.
    key: Mapped[str | None] = mapped_column(Text)
    image: Mapped[bytes | None] = mapped_column(LargeBinary)
    k: Mapped[int]
    created_at: Mapped[datetime]
    # Set once it is answered (`service.protocol.QueryAnswer`).
    answer: Mapped[Object | None]
