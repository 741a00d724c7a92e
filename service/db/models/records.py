"""Tables of the records of jobs: events, metrics, evaluations, checkpoints and artifacts."""

from datetime import datetime

from sqlalchemy import (
    BigInteger,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    String,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from service.db.models.base import Base, Object

# As literal SQL: SQLite uses a partial index only for a condition without parameters.
UNPLACED = "position IS NULL"
"""Condition on events without a position in the order of all jobs' events."""
HAS_FILES = "checkpoints.state != 'deleted'"
"""Condition on checkpoints whose files exist; most rows are of deleted ones."""


class Event(Base):
    """An entry of a job's history; `seq` is 1, 2, 3, ... without a gap."""

    __tablename__ = "events"
    __table_args__ = (
        # Lists are ordered by position, with any filter.
        Index(None, "tenant", "level", "position"),
        Index(None, "tenant", "type", "position"),
        Index(None, "position", unique=True),
        Index(
            "ix_events_unplaced",
            "job_id",
            sqlite_where=text(UNPLACED),
            postgresql_where=text(UNPLACED),
        ),
    )

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    at: Mapped[datetime]
    type: Mapped[str] = mapped_column(String(50))
    message: Mapped[str] = mapped_column(Text)
    data: Mapped[Object]
    # Position among the events of all jobs, and copies of the job's tenant and the level. All are null until
    # `service.events.repository.assign_positions` sets them a moment later.
    position: Mapped[int | None] = mapped_column(BigInteger)
    tenant: Mapped[str | None] = mapped_column(String(100))
    level: Mapped[str | None] = mapped_column(String(10))


class EventCounter(Base):
    """The last assigned position of an event: one row, `id` 1, whose lock serializes the assignment."""

    __tablename__ = "event_counter"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    last: Mapped[int] = mapped_column(BigInteger)


class Metric(Base):
    """One value of one series. A restarted attempt repeats steps; the newest attempt counts.

    Old points are thinned: see `service.metrics.thinning`.
    """

    __tablename__ = "metrics"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    step: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    attempt: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    time: Mapped[float]
    value: Mapped[float]


class Evaluation(Base):
    """Metrics of one subject (`dasl_core.vocabulary.Subject`) at one step."""

    __tablename__ = "evaluations"
    __table_args__ = (Index(None, "job_id", "step"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    attempt: Mapped[int]
    step: Mapped[int] = mapped_column(BigInteger)
    epoch: Mapped[float]
    subject: Mapped[str] = mapped_column(String(50))
    metrics: Mapped[Object]
    created_at: Mapped[datetime]


class Checkpoint(Base):
    """A registered checkpoint: `files` is its manifest, a list of {name, size, sha256}; empty once it is deleted."""

    __tablename__ = "checkpoints"
    __table_args__ = (
        ForeignKeyConstraint(["job_id", "attempt"], ["runs.owner", "runs.number"]),
        Index(None, "job_id", "step"),
        Index(
            "ix_checkpoints_with_files",
            "state",
            "id",
            "size",
            sqlite_where=text(HAS_FILES),
            postgresql_where=text(HAS_FILES),
        ),
        UniqueConstraint("uri"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    attempt: Mapped[int]
    step: Mapped[int] = mapped_column(BigInteger)
    epoch: Mapped[float]
    uri: Mapped[str] = mapped_column(String(1000))
    files: Mapped[list[Object]]
    metrics: Mapped[Object]
    state: Mapped[str] = mapped_column(String(20))
    final: Mapped[bool]
    pinned: Mapped[bool] = mapped_column(default=False)
    verification: Mapped[Object | None]
    # Total size of the files in bytes.
    size: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime]


class Artifact(Base):
    """A file of a job that is not part of a checkpoint; an upload of the same name replaces it."""

    __tablename__ = "artifacts"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    name: Mapped[str] = mapped_column(String(255), primary_key=True)
    attempt: Mapped[int]
    uri: Mapped[str] = mapped_column(Text)
    size: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64))
    content_type: Mapped[str] = mapped_column(String(100))
    created_at: Mapped[datetime]
