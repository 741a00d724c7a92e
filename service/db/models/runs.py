"""Tables of runs: processes on the cluster that work on a job, a data set or a task."""

from datetime import datetime

from sqlalchemy import Index, String, text
from sqlalchemy.orm import Mapped, mapped_column, synonym

from service.db.models.base import Base, Object


class Run(Base):
    """A run of a program on Ray, of any kind; `(owner, number)` is its fencing epoch.

    The owner is a job, a data set or a task; an owner's runs are numbered 1, 2, 3, ...
    """

    __tablename__ = "runs"
    __table_args__ = (
        Index(None, "kind", "created_at"),
        # For the few that have ended and are not settled.
        Index(
            "ix_runs_unsettled",
            "kind",
            "finished_at",
            sqlite_where=text("settled = 0"),
            postgresql_where=text("NOT settled"),
        ),
        # The live ones, and the order of ends, in which sweeps visit all, or those of a kind.
        Index(None, "kind", "finished_at", "owner", "number"),
        Index(None, "finished_at", "owner", "number"),
    )
    __mapper_args__ = {"polymorphic_on": "kind"}  # noqa: RUF012  # SQLAlchemy's type

    owner: Mapped[str] = mapped_column(String(40), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[str] = mapped_column(String(20))
    submission_id: Mapped[str] = mapped_column(String(60), unique=True)
    state: Mapped[str] = mapped_column(String(20))
    token_hash: Mapped[str] = mapped_column(String(64), unique=True)
    # The last heartbeat of any process of the run.
    heartbeat_at: Mapped[datetime | None]
    # The last report of progress, which only rank 0 sends, and its last change (`service.runs.liveness`).
    progress_reported_at: Mapped[datetime | None]
    progressed_at: Mapped[datetime | None]
    created_at: Mapped[datetime]
    # Null while the run is live (`service.states.LIVE_ATTEMPT`).
    finished_at: Mapped[datetime | None]
    # Confirmed runtime: each gap between heartbeats counts for at most `service.runs.liveness.MAX_SILENCE`.
    ran_seconds: Mapped[float] = mapped_column(default=0.0)
    error: Mapped[Object | None]
    # The error's type, for grouping: the error may contain a long log.
    error_type: Mapped[str | None] = mapped_column(String(200))
    # The service's request to save and stop (`service.states.StopReason`).
    stop_reason: Mapped[str | None] = mapped_column(String(20))
    stop_requested_at: Mapped[datetime | None]
    resume_checkpoint_id: Mapped[str | None] = mapped_column(String(40))
    # Number of ranks of an attempt; null: the spec's number of workers.
    workers: Mapped[int | None]
    # Whether the run and its processes have ended, and its log is complete.
    settled: Mapped[bool] = mapped_column(default=False)


class Attempt(Run):
    """A training run of a job."""

    __mapper_args__ = {"polymorphic_identity": "train"}  # noqa: RUF012  # SQLAlchemy's type

    job_id: Mapped[str] = synonym("owner")


class IngestRun(Run):
    """An ingest run of a data set."""

    __mapper_args__ = {"polymorphic_identity": "ingest"}  # noqa: RUF012  # SQLAlchemy's type

    dataset_id: Mapped[str] = synonym("owner")


class PreviewRun(Run):
    """A run that draws a preview."""

    __mapper_args__ = {"polymorphic_identity": "preview"}  # noqa: RUF012  # SQLAlchemy's type


class PreparationRun(Run):
    """A run that decodes the images of a data set."""

    __mapper_args__ = {"polymorphic_identity": "prepare"}  # noqa: RUF012  # SQLAlchemy's type


class ModelRunRun(Run):
    """A run of a finished model."""

    __mapper_args__ = {"polymorphic_identity": "model"}  # noqa: RUF012  # SQLAlchemy's type


class SearchRun(Run):
    """A run that finds neighbors."""

    __mapper_args__ = {"polymorphic_identity": "search"}  # noqa: RUF012  # SQLAlchemy's type
