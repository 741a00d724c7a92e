"""Tables of data sets: versions and uploads."""

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, Index, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from service.db.models.base import Base, Object

REMOVED = "removed"
"""State of a deleted data set of which only the row is left."""
# As literal SQL: SQLite uses a partial index only for a condition without parameters.
UNREMOVED = f"deleted_at IS NOT NULL AND state != '{REMOVED}'"
"""Condition on deleted data sets that still have files or a run."""


class Dataset(Base):
    """A registered data set; its ingests are `IngestRun`s."""

    __tablename__ = "datasets"
    __table_args__ = (
        Index(
            None,
            "tenant",
            "name",
            unique=True,
            sqlite_where=text("deleted_at IS NULL"),
            postgresql_where=text("deleted_at IS NULL"),
        ),
        Index(None, "state"),
        Index(
            "ix_datasets_unremoved",
            "deleted_at",
            sqlite_where=text(UNREMOVED),
            postgresql_where=text(UNREMOVED),
        ),
        Index(None, "refresh_state"),
        Index(None, "token_id", "state"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(100))
    name: Mapped[str] = mapped_column(String(200))
    uri: Mapped[str] = mapped_column(Text)
    # Which images are used (`dasl_core.spec.source.SourceOptions`); null: the defaults.
    source: Mapped[Object | None]
    state: Mapped[str] = mapped_column(String(20))
    # Copied from the newest version (`DatasetVersion`), with its number, which is 1 even before the first ingest.
    facts: Mapped[Object | None]
    report: Mapped[Object | None]
    index_uri: Mapped[str | None] = mapped_column(Text)
    version: Mapped[int] = mapped_column(default=1)
    error: Mapped[Object | None]
    # State of the ingest of the next version: pending, ingesting or failed; null: none was requested, or the last one ended.
    refresh_state: Mapped[str | None] = mapped_column(String(20))
    refresh_error: Mapped[Object | None]
    # When its newest ingest was requested: it was registered, its upload was complete, or somebody asked for another.
    ingest_requested_at: Mapped[datetime]
    # The token that requested the newest ingest and whose quota it uses; null: the token that registered the data set.
    refresh_token_id: Mapped[str | None] = mapped_column(String(40))
    # The runs of the newest ingest have greater numbers; failures of earlier runs do not count.
    ingest_after: Mapped[int] = mapped_column(default=0)
    # Progress of the running ingest (`service.protocol.IngestProgress`).
    progress: Mapped[Object | None]
    # Null unless uploaded: {filename, sha256, fingerprint}, the file's size, the number of stored bytes, and the time of
    # the last chunk.
    upload_file: Mapped[Object | None]
    upload_size: Mapped[int | None] = mapped_column(BigInteger)
    upload_received: Mapped[int | None] = mapped_column(BigInteger)
    upload_received_at: Mapped[datetime | None]
    # When an unfinished upload was found to be old (by `service.storage.clock`); it is deleted a day later.
    upload_marked_at: Mapped[datetime | None]
    # The token that registered the data set and whose quota its first ingest uses.
    token_id: Mapped[str | None] = mapped_column(String(40))
    created_at: Mapped[datetime]
    # The row stays, because finished jobs still refer to it.
    deleted_at: Mapped[datetime | None]

    @property
    def upload(self) -> Object | None:
        """The uploaded file and how much of it is stored; None if the images were not uploaded."""
        if self.upload_file is None:
            return None
        return self.upload_file | {"size": self.upload_size, "received": self.upload_received}

    @property
    def upload_folder(self) -> str | None:
        """The folder of the uploaded file, the only folder that the data set is read from."""
        return None if self.upload_file is None else self.uri.rpartition("/")[0]

    @property
    def refresh(self) -> Object | None:
        """The refresh that waits, runs or has failed."""
        if self.refresh_state is None:
            return None
        at = self.ingest_requested_at
        return {"state": self.refresh_state, "error": self.refresh_error, "requested_at": at}


class DatasetVersion(Base):
    """A version of a data set: the result of an ingest."""

    __tablename__ = "dataset_versions"
    __table_args__ = (
        Index(
            "ix_dataset_versions_stored",
            "dataset_id",
            "number",
            sqlite_where=text("index_uri IS NOT NULL"),
            postgresql_where=text("index_uri IS NOT NULL"),
        ),
    )

    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    # URI of the index, in a folder with the other files of the ingest; null once they are removed.
    index_uri: Mapped[str | None] = mapped_column(Text)
    facts: Mapped[Object]
    report: Mapped[Object | None]
    created_at: Mapped[datetime]
    # When it was given up: no new job can use it, and its files are being removed.
    removed_at: Mapped[datetime | None]


class UploadChunk(Base):
    """A chunk of an upload in an object store, a separate object until all chunks are joined."""

    __tablename__ = "upload_chunks"

    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"), primary_key=True)
    start: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    stop: Mapped[int] = mapped_column(BigInteger)
    name: Mapped[str] = mapped_column(String(100))
