"""Tables of jobs and experiments."""

from datetime import datetime, timedelta

from sqlalchemy import BigInteger, Double, ForeignKey, Index, String, func, select, text
from sqlalchemy.orm import Mapped, column_property, mapped_column

from dasl_core.spec import ResolvedJobSpec, Resources, versions
from service.db.models.accounts import Token, User
from service.db.models.base import Base, Object, UtcDateTime

# As literal SQL: SQLite uses a partial index only for a condition without parameters.
_ENDED = "finished_at IS NOT NULL AND deleted_at IS NULL"
OLD_CHECKPOINTS = f"{_ENDED} AND NOT checkpoints_thinned"
"""Condition on jobs that have ended and whose older checkpoints retention may remove."""
OLD_ARTIFACTS = f"{_ENDED} AND artifacts_removed_at IS NULL"
OLD_METRICS = f"{_ENDED} AND metrics_removed_at IS NULL"
OLD_LOGS = f"{_ENDED} AND logs_removed_at IS NULL"
WAITING = "status = 'queued'"
"""Condition on jobs in the queue."""
UNTHINNED = "attempt > 0 AND NOT thinned"
"""Condition on jobs whose metrics may have to be thinned."""


def _some(name: str, condition: str, *columns: str) -> Index:
    """Build an index of the rows that meet a condition."""
    where = text(condition)
    return Index(f"ix_jobs_{name}", *columns, sqlite_where=where, postgresql_where=where)


class Expiry(Base):
    """A part of an ended job that retention by age removes a day after it was marked."""

    __tablename__ = "expiries"
    __table_args__ = (Index(None, "what", "marked_at"),)

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    # A `service.storage.repository.What`.
    what: Mapped[str] = mapped_column(String(20), primary_key=True)
    # By the time of `service.storage.clock`.
    marked_at: Mapped[datetime]
    # Its removal has begun and cannot be taken back.
    removing: Mapped[bool] = mapped_column(default=False)


class Job(Base):
    """A job. Only `service.lifecycle` writes `status`, `attempt`, the counts of failures and `next_event`."""

    __tablename__ = "jobs"
    __table_args__ = (
        Index(None, "tenant", "id"),
        # For lists, which are ordered by id, with any filter.
        Index(None, "tenant", "status", "id"),
        Index(None, "tenant", "method", "id"),
        Index(None, "experiment_id", "status", "id"),
        Index(None, "status", "priority", "id"),
        Index(None, "token_id", "status"),
        Index(None, "account_id", "status"),
        _some("waiting", WAITING, "queued_at"),
        _some("unthinned", UNTHINNED, "id"),
        _some("old_checkpoints", OLD_CHECKPOINTS, "finished_at", "id"),
        _some("old_artifacts", OLD_ARTIFACTS, "finished_at", "id"),
        _some("old_metrics", OLD_METRICS, "finished_at", "id"),
        _some("old_logs", OLD_LOGS, "finished_at", "id"),
        # For the few deleted jobs that are not removed yet.
        _some("deleted_at", "deleted_at IS NOT NULL", "deleted_at"),
        # The order of admission: classes, and the jobs of each account in them.
        Index(None, "status", "preemptible", "priority", "tenant", "account_id", "id"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(100))
    name: Mapped[str] = mapped_column(String(200))
    method: Mapped[str] = mapped_column(String(50))
    status: Mapped[str] = mapped_column(String(20))
    desired: Mapped[str] = mapped_column(String(20))
    # The stored documents, which the API shows; code reads `submitted_spec` and `resolved_spec`. The first attempt fills in
    # "auto" resources in `resolved` (`service.lifecycle`); nothing else changes them.
    spec: Mapped[Object]
    resolved: Mapped[Object]
    spec_version: Mapped[int]
    priority: Mapped[int] = mapped_column(default=0)
    # A copy of the spec's `preemptible`, because the queue is ordered by it.
    preemptible: Mapped[bool] = mapped_column(default=False)
    tags: Mapped[dict[str, str]]
    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"), index=True)
    evaluate_dataset_id: Mapped[str | None] = mapped_column(ForeignKey("datasets.id"), index=True)
    dataset_version: Mapped[int] = mapped_column(default=1)
    evaluate_dataset_version: Mapped[int | None]
    created_at: Mapped[datetime]
    # When it last entered the queue.
    queued_at: Mapped[datetime | None]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    attempt: Mapped[int] = mapped_column(default=0)
    restarts: Mapped[int] = mapped_column(default=0)
    # Number of failures in a row without progress.
    infrastructure_failures: Mapped[int] = mapped_column(default=0)
    next_event: Mapped[int] = mapped_column(default=1)
    not_before: Mapped[datetime | None]
    error: Mapped[Object | None]
    progress: Mapped[Object | None]
    verdict: Mapped[Object | None]
    # The token that submitted the job and whose quota it uses, and the checkpoint that a clone starts from.
    token_id: Mapped[str | None] = mapped_column(String(40))
    start_checkpoint_id: Mapped[str | None] = mapped_column(String(40), index=True)
    # Replaces the spec's `resources.max_hours`; the spec does not change.
    max_hours: Mapped[float | None] = mapped_column(Double)
    # Step up to which the metrics are thinned (`service.metrics.repository.Thinning`), and whether they are completely.
    thinned_attempt: Mapped[int] = mapped_column(default=0)
    thinned_step: Mapped[int] = mapped_column(BigInteger, default=0)
    thinned: Mapped[bool] = mapped_column(default=False)
    # A deleted job is hidden from every endpoint; the dispatcher removes its files and rows, this row last.
    deleted_at: Mapped[datetime | None]
    # When retention removed its metrics, logs and artifacts; checkpoints have their own state.
    logs_removed_at: Mapped[datetime | None]
    metrics_removed_at: Mapped[datetime | None]
    artifacts_removed_at: Mapped[datetime | None]
    # When a user took back what retention by age had marked: it waits as long again.
    undeleted_at: Mapped[datetime | None]
    # Whether retention by age has removed all checkpoints that it may remove.
    checkpoints_thinned: Mapped[bool] = mapped_column(default=False)
    # Replaces the spec's `resources.workers`.
    workers: Mapped[int | None]
    # The account that is charged: the user of the token, or the token if it has no user.
    account_id: Mapped[str] = mapped_column(String(40))
    # The name of the user or token; read only by queries that select it.
    submitted_by: Mapped[str | None] = column_property(
        func.coalesce(
            select(User.name).where(User.id == account_id).scalar_subquery(),
            select(Token.name).where(Token.id == token_id).scalar_subquery(),
        ),
        deferred=True,
    )
    # When retention by age marked the first part of it; read like `submitted_by`.
    marked_at: Mapped[datetime | None] = column_property(
        select(func.min(Expiry.marked_at, type_=UtcDateTime()))
        .where(Expiry.job_id == id, ~Expiry.removing)
        .scalar_subquery(),
        deferred=True,
    )
    # Its experiment, variant and seed; null: it belongs to no experiment.
    experiment_id: Mapped[str | None] = mapped_column(String(40))
    variant: Mapped[str | None] = mapped_column(String(100))
    seed: Mapped[int | None] = mapped_column(BigInteger)

    @property
    def submitted_spec(self) -> Object:
        """The submitted spec, in the current version.

        Raises:
            UnreadableSpec: see `versions.upgrade`.
        """
        return versions.upgrade(self.spec, self.spec_version)

    @property
    def resolved_spec(self) -> ResolvedJobSpec:
        """The resolved spec.

        Raises:
            UnreadableSpec: see `versions.load`.
        """
        return versions.load(self.resolved, self.spec_version)

    @property
    def resources(self) -> Resources:
        """The resources of the resolved spec; the other sections are not parsed.

        Raises:
            UnreadableSpec: see `versions.load_resources`.
        """
        return versions.load_resources(self.resolved, self.spec_version)

    @property
    def time_limit(self) -> timedelta:
        """Time limit of all attempts of the job together.

        Raises:
            UnreadableSpec: see `resources`.
        """
        hours = self.resources.max_hours if self.max_hours is None else self.max_hours
        return timedelta(hours=hours)


class JobTag(Base):
    """A copy of one tag of `Job.tags`, indexed for filters."""

    __tablename__ = "job_tags"

    tenant: Mapped[str] = mapped_column(String(100), primary_key=True)
    key: Mapped[str] = mapped_column(String(63), primary_key=True)
    value: Mapped[str] = mapped_column(String(63), primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True, index=True)


class IdempotencyKey(Base):
    """The answer to a request with an Idempotency-Key, and the hash of the request's body."""

    __tablename__ = "idempotency_keys"

    tenant: Mapped[str] = mapped_column(String(100), primary_key=True)
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    body_hash: Mapped[str] = mapped_column(String(64))
    answer: Mapped[Object]
    # Indexed for the removal of old rows.
    created_at: Mapped[datetime] = mapped_column(index=True)


class Experiment(Base):
    """A group of jobs that were submitted together: variants of a spec, each with the same seeds."""

    __tablename__ = "experiments"
    __table_args__ = (Index(None, "tenant", "id"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(100))
    name: Mapped[str] = mapped_column(String(100))
    # The submitted base spec, and {name, changes, held_out_images} of each variant.
    spec: Mapped[Object]
    variants: Mapped[list[Object]]
    seeds: Mapped[list[int]]
    baseline: Mapped[str] = mapped_column(String(100))
    # The metric that decides; null: the first known one.
    metric: Mapped[str | None] = mapped_column(String(50))
    token_id: Mapped[str | None] = mapped_column(String(40))
    created_at: Mapped[datetime]
