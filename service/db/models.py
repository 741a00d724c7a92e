"""The database tables. A schema validates all JSON columns before they are stored."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    MetaData,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
    false,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, declared_attr, mapped_column, synonym

from dasl_core.spec import ResolvedJobSpec, Resources, versions

# `none_as_null`: Python's None becomes SQL NULL, so that queries can use IS NULL.
Json = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
Object = dict[str, Any]
# As literal SQL: SQLite uses a partial index only for a condition without parameters.
UNTHINNED = "attempt > 0 AND NOT thinned"
"""Condition on jobs whose metrics may have to be thinned."""


class UtcDateTime(TypeDecorator[datetime]):
    """A time in UTC with a time zone, also on SQLite, which stores no time zones."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert an aware time to UTC; a naive one is an error of the caller."""
        if value is None:
            return None
        assert value.tzinfo is not None, "naive datetime"
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return the time as an aware one, in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    """Base of all tables; its constraint names are the same on both databases, for migrations."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        datetime: UtcDateTime(),
        Object: Json,
        list[Object]: Json,
        list[str]: Json,
        dict[str, str]: Json,
    }


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
    # Copies of those of the newest version (`DatasetVersion`), and its number: 1 also before it is ingested.
    facts: Mapped[Object | None]
    report: Mapped[Object | None]
    index_uri: Mapped[str | None] = mapped_column(Text)
    version: Mapped[int] = mapped_column(default=1, server_default=text("1"))
    error: Mapped[Object | None]
    # Of the ingest of the next version: pending, ingesting or failed; null: none was requested, or the last one ended.
    refresh_state: Mapped[str | None] = mapped_column(String(20))
    refresh_error: Mapped[Object | None]
    refresh_requested_at: Mapped[datetime | None]
    # The token that asked for the newest ingest and whose quota it uses; null: the one that registered the data set.
    refresh_token_id: Mapped[str | None] = mapped_column(String(40))
    # The runs of the newest ingest have greater numbers: failures of earlier ones do not count.
    ingest_after: Mapped[int] = mapped_column(default=0, server_default=text("0"))
    # Of the running ingest (`service.protocol.IngestProgress`).
    progress: Mapped[Object | None]
    # Of an upload, else null: {filename, sha256, fingerprint}, its bytes and how many are stored, and when the last
    # of them were.
    upload_file: Mapped[Object | None]
    upload_size: Mapped[int | None] = mapped_column(BigInteger)
    upload_received: Mapped[int | None] = mapped_column(BigInteger)
    upload_received_at: Mapped[datetime | None]
    # The token that registered the data set and whose quota its first ingest uses.
    token_id: Mapped[str | None] = mapped_column(String(40))
    # Only for processes of version 0.1, which use them during an upgrade. Reading one is an error.
    attempt: Mapped[int] = mapped_column(default=0, deferred=True, deferred_raiseload=True)
    token_hash: Mapped[str | None] = mapped_column(
        String(64), unique=True, deferred=True, deferred_raiseload=True
    )
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
        """The folder of the uploaded file, from which alone the data set is read."""
        return None if self.upload_file is None else self.uri.rpartition("/")[0]

    @property
    def refresh(self) -> Object | None:
        """The refresh that waits, runs or has failed."""
        if self.refresh_state is None:
            return None
        at = self.refresh_requested_at
        return {"state": self.refresh_state, "error": self.refresh_error, "requested_at": at}


class DatasetVersion(Base):
    """What one ingest of a data set has found."""

    __tablename__ = "dataset_versions"

    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    # In a folder with the other files of the ingest; null once they are removed.
    index_uri: Mapped[str | None] = mapped_column(Text)
    facts: Mapped[Object]
    report: Mapped[Object | None]
    created_at: Mapped[datetime]
    # When it was given up: no job can choose it any more, and its files are being removed.
    removed_at: Mapped[datetime | None]


class UploadChunk(Base):
    """A chunk of an upload in an object store, an object of its own until all of them are joined."""

    __tablename__ = "upload_chunks"

    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"), primary_key=True)
    start: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    stop: Mapped[int] = mapped_column(BigInteger)
    name: Mapped[str] = mapped_column(String(100))


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

    # Null: a version without this column added it, which drew from the newest one.
    dataset_version: Mapped[int | None]
    # As of a job: the spec as it was submitted, and resolved.
    spec: Mapped[Object]
    resolved: Mapped[Object]
    spec_version: Mapped[int]
    images: Mapped[int]
    # The folder of the files, a list of {name, size, sha256}, and their bytes, of a preview that succeeded. The dispatcher
    # adds the bytes that versions without this column left out.
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


class Job(Base):
    """A job. Only `service.lifecycle` writes `status`, `attempt`, the counts of failures and `next_event`."""

    __tablename__ = "jobs"
    __table_args__ = (
        Index(None, "tenant", "id"),
        # Lists are ordered by id, with any filter.
        Index(None, "tenant", "status", "id"),
        Index(None, "tenant", "method", "id"),
        Index(None, "status", "priority", "id"),
        Index(None, "token_id", "status"),
        Index(None, "account_id", "status"),
        Index(
            "ix_jobs_unthinned",
            "id",
            sqlite_where=text(UNTHINNED),
            postgresql_where=text(UNTHINNED),
        ),
        # Few jobs are deleted and not removed yet.
        Index(
            None,
            "deleted_at",
            sqlite_where=text("deleted_at IS NOT NULL"),
            postgresql_where=text("deleted_at IS NOT NULL"),
        ),
        # The order of admission: classes, and the jobs of each account in them.
        Index(None, "status", "preemptible", "priority", "tenant", "account_id", "id"),
        # For the dispatcher of the version before; a later migration may drop it.
        Index(None, "status", "preemptible", "priority", "tenant", "token_id", "id"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(100))
    name: Mapped[str] = mapped_column(String(200))
    method: Mapped[str] = mapped_column(String(50))
    status: Mapped[str] = mapped_column(String(20))
    desired: Mapped[str] = mapped_column(String(20))
    # As they were stored: the API shows them, and code reads `submitted_spec` and `resolved_spec`.
    spec: Mapped[Object]
    resolved: Mapped[Object]
    # The default is for version 0.1, which adds jobs without it.
    spec_version: Mapped[int] = mapped_column(server_default=text("1"))
    priority: Mapped[int] = mapped_column(default=0)
    # A copy of `preemptible` of the spec: the queue is ordered by it.
    preemptible: Mapped[bool] = mapped_column(default=False, server_default=false())
    tags: Mapped[dict[str, str]]
    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"), index=True)
    evaluate_dataset_id: Mapped[str | None] = mapped_column(ForeignKey("datasets.id"), index=True)
    # The default, and null for 1, are for versions that add jobs without them.
    dataset_version: Mapped[int] = mapped_column(default=1, server_default=text("1"))
    evaluate_dataset_version: Mapped[int | None]
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    attempt: Mapped[int] = mapped_column(default=0)
    restarts: Mapped[int] = mapped_column(default=0)
    # In a row and without progress; the default is for version 0.1, which adds jobs without it.
    infrastructure_failures: Mapped[int] = mapped_column(default=0, server_default=text("0"))
    next_event: Mapped[int] = mapped_column(default=1)
    not_before: Mapped[datetime | None]
    error: Mapped[Object | None]
    progress: Mapped[Object | None]
    verdict: Mapped[Object | None]
    # The token that submitted the job and whose quota it uses, and the checkpoint that a clone starts from.
    token_id: Mapped[str | None] = mapped_column(String(40))
    start_checkpoint_id: Mapped[str | None] = mapped_column(String(40), index=True)
    # Replaces `resources.max_hours` of the spec, which is never rewritten.
    max_hours: Mapped[float | None] = mapped_column(Double)
    # How far the metrics are thinned (`service.metrics.repository.Thinning`), and whether completely.
    # Jobs of earlier versions, which know none of it, are thinned as well.
    thinned_attempt: Mapped[int] = mapped_column(default=0, server_default=text("0"))
    thinned_step: Mapped[int] = mapped_column(BigInteger, default=0, server_default=text("0"))
    thinned: Mapped[bool] = mapped_column(default=False, server_default=false())
    # Hidden from every endpoint; the dispatcher removes its files and rows, this one last.
    deleted_at: Mapped[datetime | None]
    # When retention removed what is older than the settings keep; its checkpoints have their own state.
    logs_removed_at: Mapped[datetime | None]
    metrics_removed_at: Mapped[datetime | None]
    artifacts_removed_at: Mapped[datetime | None]
    # Replaces `resources.workers` in the same way.
    workers: Mapped[int | None]
    # What each worker of its newest attempt has in place of "auto" of the spec; null: not chosen yet, or not "auto".
    cpus_per_worker: Mapped[int | None]
    gpus_per_worker: Mapped[int | None]
    # CPUs that its first attempt had in place of "auto", and later ones have if nodes have room for them.
    first_cpus_per_worker: Mapped[int | None]
    # Who is charged: the user of the token, else the token. The dispatcher adds what versions without this column
    # left out.
    account_id: Mapped[str | None] = mapped_column(String(40))

    @property
    def submitted_spec(self) -> Object:
        """The spec as it was submitted, in today's version.

        Raises:
            UnreadableSpec: as in `versions.upgrade`.
        """
        return versions.upgrade(self.spec, self.spec_version)

    @property
    def resolved_spec(self) -> ResolvedJobSpec:
        """The resolved spec.

        Raises:
            UnreadableSpec: as in `versions.load`.
        """
        return versions.load(self.resolved, self.spec_version)

    @property
    def resources(self) -> Resources:
        """The resources of the resolved spec, of which nothing else is read.

        Raises:
            UnreadableSpec: as in `versions.load_resources`.
        """
        return versions.load_resources(self.resolved, self.spec_version)

    @property
    def time_limit(self) -> timedelta:
        """Time limit of all attempts of the job together.

        Raises:
            UnreadableSpec: as in `resources`.
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
    # Indexed to remove old rows.
    created_at: Mapped[datetime] = mapped_column(index=True)


class Run(Base):
    """A run of a program on Ray, of any kind; `(owner, number)` is its fencing epoch.

    The owner is a job, a data set or a task; an owner's runs are numbered 1, 2, 3, ...
    """

    __tablename__ = "runs"
    __table_args__ = (Index(None, "kind", "state"),)
    __mapper_args__ = {"polymorphic_on": "kind"}  # noqa: RUF012  # as SQLAlchemy types it

    owner: Mapped[str] = mapped_column(String(40), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    # The default is for version 0.1, which adds attempts through the view `attempts` without a kind.
    kind: Mapped[str] = mapped_column(String(20), server_default="train")
    submission_id: Mapped[str] = mapped_column(String(60), unique=True)
    state: Mapped[str] = mapped_column(String(20))
    token_hash: Mapped[str] = mapped_column(String(64), unique=True)
    # Liveness: the last heartbeat of any process of the run.
    heartbeat_at: Mapped[datetime | None]
    # Progress: its last report, which only rank 0 sends, and its last change. See `service.runs.liveness`.
    progress_reported_at: Mapped[datetime | None]
    progressed_at: Mapped[datetime | None]
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    # Confirmed runtime: each gap between heartbeats counts for at most `service.runs.liveness.MAX_SILENCE`.
    ran_seconds: Mapped[float] = mapped_column(default=0.0, server_default=text("0"))
    error: Mapped[Object | None]
    # The error's type, to count by: the error itself may hold a long log.
    error_type: Mapped[str | None] = mapped_column(String(200))
    # A request of the service itself to save and stop (`service.states.StopReason`).
    stop_reason: Mapped[str | None] = mapped_column(String(20))
    stop_requested_at: Mapped[datetime | None]
    resume_checkpoint_id: Mapped[str | None] = mapped_column(String(40))
    # Number of ranks of an attempt; null: as many as the spec says.
    workers: Mapped[int | None]
    # Whether the run has ended, its processes are gone, and its log is complete.
    settled: Mapped[bool] = mapped_column(default=False, server_default=false(), index=True)


class Attempt(Run):
    """A training run of a job."""

    __mapper_args__ = {"polymorphic_identity": "train"}  # noqa: RUF012  # as SQLAlchemy types it

    job_id: Mapped[str] = synonym("owner")


class IngestRun(Run):
    """An ingest run of a data set."""

    __mapper_args__ = {"polymorphic_identity": "ingest"}  # noqa: RUF012  # as SQLAlchemy types it

    dataset_id: Mapped[str] = synonym("owner")


class PreviewRun(Run):
    """A run that draws a preview."""

    __mapper_args__ = {"polymorphic_identity": "preview"}  # noqa: RUF012  # as SQLAlchemy types it


class PreparationRun(Run):
    """A run that decodes the images of a data set."""

    __mapper_args__ = {"polymorphic_identity": "prepare"}  # noqa: RUF012  # as SQLAlchemy types it


class Event(Base):
    """An entry of a job's history; `seq` is 1, 2, 3, ... without a gap."""

    __tablename__ = "events"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    at: Mapped[datetime]
    type: Mapped[str] = mapped_column(String(50))
    message: Mapped[str] = mapped_column(Text)
    data: Mapped[Object]


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
        Index(None, "state"),
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
    pinned: Mapped[bool] = mapped_column(default=False, server_default=false())
    # Bytes of all files. The dispatcher adds what versions without this column left out.
    size: Mapped[int | None] = mapped_column(BigInteger)
    created_at: Mapped[datetime]


class Artifact(Base):
    """A file of a job beside its checkpoints; a new upload replaces the file of the same name."""

    __tablename__ = "artifacts"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    name: Mapped[str] = mapped_column(String(255), primary_key=True)
    attempt: Mapped[int]
    uri: Mapped[str] = mapped_column(Text)
    size: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64))
    content_type: Mapped[str] = mapped_column(String(100))
    created_at: Mapped[datetime]


class Token(Base):
    """An API token; only the hash of its text is stored."""

    __tablename__ = "tokens"
    __table_args__ = (Index(None, "tenant", "id"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(100))
    name: Mapped[str] = mapped_column(String(200))
    hash: Mapped[str] = mapped_column(String(64), unique=True)
    scopes: Mapped[list[str]]
    # The person it belongs to, whose role limits its scopes.
    user_id: Mapped[str | None] = mapped_column(String(40), index=True)
    # Quotas of the jobs submitted and the data sets registered with this token; None: no limit.
    max_queued_jobs: Mapped[int | None]
    max_running_jobs: Mapped[int | None]
    max_gpus: Mapped[int | None]
    max_pending_datasets: Mapped[int | None]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    # Created by a login: removed long after its expiry.
    from_login: Mapped[bool] = mapped_column(default=False, server_default=false())
    # To the minute: see `service.api.last_use`.
    last_used_at: Mapped[datetime | None]


class User(Base):
    """A person of a tenant; the identity at a login provider is optional."""

    __tablename__ = "users"
    __table_args__ = (
        Index(None, "tenant", "id"),
        UniqueConstraint("tenant", "issuer", "subject"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(100))
    name: Mapped[str] = mapped_column(String(200))
    email: Mapped[str | None] = mapped_column(String(320))
    # The highest scope that its tokens can have.
    role: Mapped[str] = mapped_column(String(20))
    # Who the user is at the login provider (OpenID Connect).
    issuer: Mapped[str | None] = mapped_column(String(500))
    subject: Mapped[str | None] = mapped_column(String(255))
    created_at: Mapped[datetime]
    last_login_at: Mapped[datetime | None]
    # Its tokens are refused.
    disabled_at: Mapped[datetime | None]


class Login(Base):
    """A login that was started and not finished; it is removed when it is used, or has expired."""

    __tablename__ = "logins"

    # Only hashes of what the client must present: the `state`, and the secret that only it knows.
    state_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    secret_hash: Mapped[str] = mapped_column(String(64))
    nonce: Mapped[str] = mapped_column(String(64))
    code_verifier: Mapped[str] = mapped_column(String(128))
    redirect_uri: Mapped[str] = mapped_column(String(200))
    expires_at: Mapped[datetime] = mapped_column(index=True)
    # Of the client that started it.
    address: Mapped[str | None] = mapped_column(String(100))


class Tenant(Base):
    """A team: its share of the cluster and its limits. A tenant without a row has the defaults."""

    __tablename__ = "tenants"

    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    # Share of the cluster, relative to those of the other tenants.
    weight: Mapped[float] = mapped_column(Double, default=1.0, server_default=text("1"))
    # Quotas of all its jobs together, and limits on each of them; None: no limit.
    max_queued_jobs: Mapped[int | None]
    max_running_jobs: Mapped[int | None]
    max_gpus: Mapped[int | None]
    max_priority: Mapped[int | None]
    max_hours: Mapped[float | None] = mapped_column(Double)
    created_at: Mapped[datetime]
    # Its tokens are refused.
    disabled_at: Mapped[datetime | None]


class Usage(Base):
    """Use of the cluster by one job in one hour. It stays when the job is deleted."""

    __tablename__ = "usage"
    __table_args__ = (Index(None, "hour", "tenant", "token_id"),)

    job_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    hour: Mapped[datetime] = mapped_column(primary_key=True)
    tenant: Mapped[str] = mapped_column(String(100))
    token_id: Mapped[str | None] = mapped_column(String(40))
    # As of the job; null: `token_id`. So it is in rows of tokens without user that are older than this column.
    account_id: Mapped[str | None] = mapped_column(String(40))
    tags: Mapped[dict[str, str]]
    gpu_seconds: Mapped[float] = mapped_column(Double)
    cpu_seconds: Mapped[float] = mapped_column(Double)


class AuditEntry(Base):
    """A request that changed something or was forbidden: who, what, when, from where."""

    __tablename__ = "audit_entries"
    __table_args__ = (Index(None, "tenant", "id"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    at: Mapped[datetime]
    tenant: Mapped[str] = mapped_column(String(100))
    token_id: Mapped[str] = mapped_column(String(40))
    # The user of the token, which a removed token no longer names.
    user_id: Mapped[str | None] = mapped_column(String(40))
    method: Mapped[str] = mapped_column(String(10))
    path: Mapped[str] = mapped_column(Text)
    status: Mapped[int]
    address: Mapped[str | None] = mapped_column(String(100))


class ClusterSnapshot(Base):
    """The dispatcher's last report of the Ray cluster and of itself: one row, `id` 1."""

    __tablename__ = "cluster_snapshot"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    at: Mapped[datetime]
    alive: Mapped[bool]
    nodes: Mapped[list[Object]]
    # Further properties of nodes, by id. Not in `nodes`: the version before reads these with all their keys.
    node_details: Mapped[Object | None]
    # Nodes that left the cluster a short time ago (`service.scheduling.nodes_away`); NULL from an older dispatcher.
    nodes_away: Mapped[list[Object] | None]
    total_cpus: Mapped[float]
    total_gpus: Mapped[float]
    used_cpus: Mapped[float]
    used_gpus: Mapped[float]
    # A `service.scheduling.dispatcher_report.DispatcherReport`; NULL from an older dispatcher.
    dispatcher: Mapped[Object | None]


class Drain(Base):
    """A node that gets no new workers, by its id, name or address; `*` is the whole cluster."""

    __tablename__ = "drains"

    node: Mapped[str] = mapped_column(String(200), primary_key=True)
    # Attempts with ranks there save a checkpoint and stop.
    save: Mapped[bool]
    reason: Mapped[str] = mapped_column(Text)
    tenant: Mapped[str] = mapped_column(String(100))
    token_id: Mapped[str | None] = mapped_column(String(40))
    created_at: Mapped[datetime]


class Lease(Base):
    """The holder of a role that only one process may have, and the time of its expiry."""

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(String(50), primary_key=True)
    holder: Mapped[str] = mapped_column(String(200))
    expires_at: Mapped[datetime]
