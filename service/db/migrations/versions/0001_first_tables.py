"""The first tables."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_ID = sa.String(40)
_TIME = sa.DateTime(timezone=True)
_JSON = sa.JSON().with_variant(JSONB(), "postgresql")


def _where(condition: str) -> dict[str, Any]:
    """Return the options of an index on the rows that meet a condition."""
    return {f"{dialect}_where": sa.text(condition) for dialect in ("sqlite", "postgresql")}


def _create_task_table(name: str, *columns: sa.Column[Any], has_dataset: bool = True) -> None:
    """Create a table of tasks on data sets or checkpoints."""
    op.create_table(
        name,
        sa.Column("id", _ID, primary_key=True),
        sa.Column("tenant", sa.String(100), nullable=False),
        sa.Column("dataset_id", _ID, sa.ForeignKey("datasets.id"), nullable=not has_dataset),
        *columns,
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("error", _JSON),
        sa.Column("token_id", _ID),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("finished_at", _TIME),
        sa.Column("deleted_at", _TIME),
        sa.Index(None, "dataset_id", "id"),
        sa.Index(None, "state", "id"),
        sa.Index(None, "token_id", "state"),
    )


def upgrade() -> None:
    op.create_table(
        "audit_entries",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("tenant", sa.String(100), nullable=False),
        sa.Column("token_id", _ID, nullable=False),
        sa.Column("user_id", _ID),
        sa.Column("method", sa.String(10), nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("address", sa.String(100)),
        sa.Index(None, "tenant", "id"),
    )
    op.create_table(
        "cluster_snapshot",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("alive", sa.Boolean, nullable=False),
        sa.Column("nodes", _JSON, nullable=False),
        sa.Column("total_cpus", sa.Double, nullable=False),
        sa.Column("total_gpus", sa.Double, nullable=False),
        sa.Column("used_cpus", sa.Double, nullable=False),
        sa.Column("used_gpus", sa.Double, nullable=False),
        sa.Column("dispatcher", _JSON, nullable=False),
    )
    op.create_table(
        "datasets",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("tenant", sa.String(100), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("uri", sa.Text, nullable=False),
        sa.Column("source", _JSON),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("facts", _JSON),
        sa.Column("report", _JSON),
        sa.Column("index_uri", sa.Text),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("error", _JSON),
        sa.Column("refresh_state", sa.String(20)),
        sa.Column("refresh_error", _JSON),
        sa.Column("refresh_requested_at", _TIME),
        sa.Column("refresh_token_id", _ID),
        sa.Column("ingest_after", sa.Integer, nullable=False),
        sa.Column("progress", _JSON),
        sa.Column("upload_file", _JSON),
        sa.Column("upload_size", sa.BigInteger),
        sa.Column("upload_received", sa.BigInteger),
        sa.Column("upload_received_at", _TIME),
        sa.Column("token_id", _ID),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("deleted_at", _TIME),
        sa.Index(None, "refresh_state"),
        sa.Index(None, "state"),
        sa.Index(None, "tenant", "name", unique=True, **_where("deleted_at IS NULL")),
        sa.Index(None, "token_id", "state"),
    )
    op.create_table(
        "drains",
        sa.Column("node", sa.String(200), primary_key=True),
        sa.Column("save", sa.Boolean, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("tenant", sa.String(100), nullable=False),
        sa.Column("token_id", _ID),
        sa.Column("created_at", _TIME, nullable=False),
    )
    op.create_table(
        "event_counter",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("last", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "experiments",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("tenant", sa.String(100), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("spec", _JSON, nullable=False),
        sa.Column("variants", _JSON, nullable=False),
        sa.Column("seeds", _JSON, nullable=False),
        sa.Column("baseline", sa.String(100), nullable=False),
        sa.Column("metric", sa.String(50)),
        sa.Column("token_id", _ID),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Index(None, "tenant", "id"),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("tenant", sa.String(100), primary_key=True),
        sa.Column("key", sa.String(255), primary_key=True),
        sa.Column("body_hash", sa.String(64), nullable=False),
        sa.Column("answer", _JSON, nullable=False),
        sa.Column("created_at", _TIME, nullable=False, index=True),
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.String(50), primary_key=True),
        sa.Column("holder", sa.String(200), nullable=False),
        sa.Column("expires_at", _TIME, nullable=False),
    )
    op.create_table(
        "logins",
        sa.Column("state_hash", sa.String(64), primary_key=True),
        sa.Column("secret_hash", sa.String(64), nullable=False),
        sa.Column("nonce", sa.String(64), nullable=False),
        sa.Column("code_verifier", sa.String(128), nullable=False),
        sa.Column("redirect_uri", sa.String(200), nullable=False),
        sa.Column("expires_at", _TIME, nullable=False, index=True),
        sa.Column("address", sa.String(100)),
    )
    op.create_table(
        "runs",
        sa.Column("owner", _ID, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("submission_id", sa.String(60), nullable=False, unique=True),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("token_hash", sa.String(64), nullable=False, unique=True),
        sa.Column("heartbeat_at", _TIME),
        sa.Column("progress_reported_at", _TIME),
        sa.Column("progressed_at", _TIME),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("finished_at", _TIME),
        sa.Column("ran_seconds", sa.Double, nullable=False),
        sa.Column("error", _JSON),
        sa.Column("error_type", sa.String(200)),
        sa.Column("stop_reason", sa.String(20)),
        sa.Column("stop_requested_at", _TIME),
        sa.Column("resume_checkpoint_id", _ID),
        sa.Column("workers", sa.Integer),
        sa.Column("settled", sa.Boolean, nullable=False, index=True),
        sa.Index(None, "kind", "state"),
    )
    op.create_table(
        "search_queries",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("embedding_id", _ID, nullable=False, index=True),
        sa.Column("key", sa.Text),
        sa.Column("image", sa.LargeBinary),
        sa.Column("k", sa.Integer, nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("answer", _JSON),
    )
    op.create_table(
        "tenants",
        sa.Column("name", sa.String(100), primary_key=True),
        sa.Column("weight", sa.Double, nullable=False),
        sa.Column("max_queued_jobs", sa.Integer),
        sa.Column("max_running_jobs", sa.Integer),
        sa.Column("max_gpus", sa.Integer),
        sa.Column("max_priority", sa.Integer),
        sa.Column("max_hours", sa.Double),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("disabled_at", _TIME),
    )
    op.create_table(
        "tokens",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("tenant", sa.String(100), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False, unique=True),
        sa.Column("scopes", _JSON, nullable=False),
        sa.Column("user_id", _ID, index=True),
        sa.Column("max_queued_jobs", sa.Integer),
        sa.Column("max_running_jobs", sa.Integer),
        sa.Column("max_gpus", sa.Integer),
        sa.Column("max_pending_datasets", sa.Integer),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("expires_at", _TIME),
        sa.Column("revoked_at", _TIME),
        sa.Column("from_login", sa.Boolean, nullable=False),
        sa.Column("last_used_at", _TIME),
        sa.Index(None, "tenant", "id"),
    )
    op.create_table(
        "usage",
        sa.Column("job_id", _ID, primary_key=True),
        sa.Column("hour", _TIME, primary_key=True),
        sa.Column("tenant", sa.String(100), nullable=False),
        sa.Column("token_id", _ID),
        sa.Column("account_id", _ID, nullable=False),
        sa.Column("tags", _JSON, nullable=False),
        sa.Column("gpu_seconds", sa.Double, nullable=False),
        sa.Column("cpu_seconds", sa.Double, nullable=False),
        sa.Index(None, "hour", "tenant", "token_id"),
    )
    op.create_table(
        "users",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("tenant", sa.String(100), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("email", sa.String(320)),
        sa.Column("role", sa.String(20), nullable=False),
        sa.Column("issuer", sa.String(500)),
        sa.Column("subject", sa.String(255)),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("last_login_at", _TIME),
        sa.Column("disabled_at", _TIME),
        sa.UniqueConstraint("tenant", "issuer", "subject"),
        sa.Index(None, "tenant", "id"),
    )
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("webhook_id", _ID, nullable=False),
        sa.Column("tenant", sa.String(100), nullable=False),
        sa.Column("type", sa.String(50), nullable=False),
        sa.Column("message", _JSON, nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("queued_at", _TIME, nullable=False),
        sa.Column("next_at", _TIME, nullable=False),
        sa.Column("attempted_at", _TIME),
        sa.Column("seconds", sa.Double),
        sa.Column("response_status", sa.Integer),
        sa.Column("error", sa.Text),
        sa.Column("finished_at", _TIME),
        sa.Index(
            "ix_webhook_deliveries_due", "webhook_id", "next_at", **_where("state = 'pending'")
        ),
        sa.Index(None, "finished_at"),
        sa.Index(None, "webhook_id", "id"),
    )
    op.create_table(
        "webhooks",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("tenant", sa.String(100), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("events", _JSON, nullable=False),
        sa.Column("tags", _JSON, nullable=False),
        sa.Column("format", sa.String(20), nullable=False),
        sa.Column("secret", sa.String(100), nullable=False),
        sa.Column("previous_secret", sa.String(100)),
        sa.Column("previous_secret_until", _TIME),
        sa.Column("token_id", _ID),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("last_success_at", _TIME),
        sa.Column("disabled_at", _TIME),
        sa.Column("disabled_reason", sa.Text),
        sa.Index(None, "tenant", "id"),
    )
    op.create_table(
        "dataset_versions",
        sa.Column("dataset_id", _ID, sa.ForeignKey("datasets.id"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("index_uri", sa.Text),
        sa.Column("facts", _JSON, nullable=False),
        sa.Column("report", _JSON),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("removed_at", _TIME),
    )
    op.create_table(
        "jobs",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("tenant", sa.String(100), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("method", sa.String(50), nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("desired", sa.String(20), nullable=False),
        sa.Column("spec", _JSON, nullable=False),
        sa.Column("resolved", _JSON, nullable=False),
        sa.Column("spec_version", sa.Integer, nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("preemptible", sa.Boolean, nullable=False),
        sa.Column("tags", _JSON, nullable=False),
        sa.Column("dataset_id", _ID, sa.ForeignKey("datasets.id"), nullable=False, index=True),
        sa.Column("evaluate_dataset_id", _ID, sa.ForeignKey("datasets.id"), index=True),
        sa.Column("dataset_version", sa.Integer, nullable=False),
        sa.Column("evaluate_dataset_version", sa.Integer),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("started_at", _TIME),
        sa.Column("finished_at", _TIME),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("restarts", sa.Integer, nullable=False),
        sa.Column("infrastructure_failures", sa.Integer, nullable=False),
        sa.Column("next_event", sa.Integer, nullable=False),
        sa.Column("not_before", _TIME),
        sa.Column("error", _JSON),
        sa.Column("progress", _JSON),
        sa.Column("verdict", _JSON),
        sa.Column("token_id", _ID),
        sa.Column("start_checkpoint_id", _ID, index=True),
        sa.Column("max_hours", sa.Double),
        sa.Column("thinned_attempt", sa.Integer, nullable=False),
        sa.Column("thinned_step", sa.BigInteger, nullable=False),
        sa.Column("thinned", sa.Boolean, nullable=False),
        sa.Column("deleted_at", _TIME),
        sa.Column("logs_removed_at", _TIME),
        sa.Column("metrics_removed_at", _TIME),
        sa.Column("artifacts_removed_at", _TIME),
        sa.Column("checkpoints_thinned", sa.Boolean, nullable=False),
        sa.Column("workers", sa.Integer),
        sa.Column("account_id", _ID, nullable=False),
        sa.Column("experiment_id", _ID),
        sa.Column("variant", sa.String(100)),
        sa.Column("seed", sa.BigInteger),
        sa.Index(
            "ix_jobs_old_checkpoints",
            "finished_at",
            "id",
            **_where("finished_at IS NOT NULL AND deleted_at IS NULL AND NOT checkpoints_thinned"),
        ),
        sa.Index("ix_jobs_unthinned", "id", **_where("attempt > 0 AND NOT thinned")),
        sa.Index(None, "account_id", "status"),
        sa.Index(None, "deleted_at", **_where("deleted_at IS NOT NULL")),
        sa.Index(None, "experiment_id", "id"),
        sa.Index(None, "status", "preemptible", "priority", "tenant", "account_id", "id"),
        sa.Index(None, "status", "priority", "id"),
        sa.Index(None, "tenant", "id"),
        sa.Index(None, "tenant", "method", "id"),
        sa.Index(None, "tenant", "status", "id"),
        sa.Index(None, "token_id", "status"),
    )
    _create_task_table(
        "model_runs",
        sa.Column("dataset_version", sa.Integer),
        sa.Column("checkpoint_id", _ID, nullable=False, index=True),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("settings", _JSON, nullable=False),
        sa.Column("progress", _JSON),
        sa.Column("result", _JSON),
        sa.Column("uri", sa.Text),
        sa.Column("files", _JSON, nullable=False),
        sa.Column("size", sa.BigInteger),
        has_dataset=False,
    )
    _create_task_table(
        "preparations",
        sa.Column("dataset_version", sa.Integer, nullable=False),
        sa.Column("image_size", sa.Integer, nullable=False),
        sa.Column("channels", sa.Integer, nullable=False),
        sa.Column("image_cache", sa.String(20), nullable=False),
        sa.Column("progress", _JSON),
        sa.Column("result", _JSON),
    )
    _create_task_table(
        "previews",
        sa.Column("dataset_version", sa.Integer, nullable=False),
        sa.Column("spec", _JSON, nullable=False),
        sa.Column("resolved", _JSON, nullable=False),
        sa.Column("spec_version", sa.Integer, nullable=False),
        sa.Column("images", sa.Integer, nullable=False),
        sa.Column("uri", sa.Text),
        sa.Column("files", _JSON, nullable=False),
        sa.Column("size", sa.BigInteger),
    )
    _create_task_table(
        "searches",
        sa.Column("embedding_id", _ID, nullable=False, index=True),
        sa.Column("asked_at", _TIME, nullable=False),
    )
    op.create_table(
        "upload_chunks",
        sa.Column("dataset_id", _ID, sa.ForeignKey("datasets.id"), primary_key=True),
        sa.Column("start", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("stop", sa.BigInteger, nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
    )
    for table in ("web_sessions", "login_codes"):
        token = sa.ForeignKey("tokens.id", ondelete="CASCADE")
        op.create_table(
            table,
            sa.Column("hash", sa.String(64), primary_key=True),
            sa.Column("token_id", _ID, token, nullable=False, index=True),
            sa.Column("created_at", _TIME, nullable=False),
            sa.Column("expires_at", _TIME, nullable=False, index=True),
        )
    op.create_table(
        "artifacts",
        sa.Column("job_id", _ID, sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("name", sa.String(255), primary_key=True),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("uri", sa.Text, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("content_type", sa.String(100), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
    )
    op.create_table(
        "checkpoints",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("job_id", _ID, sa.ForeignKey("jobs.id"), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.Double, nullable=False),
        sa.Column("uri", sa.String(1000), nullable=False),
        sa.Column("files", _JSON, nullable=False),
        sa.Column("metrics", _JSON, nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("final", sa.Boolean, nullable=False),
        sa.Column("pinned", sa.Boolean, nullable=False),
        sa.Column("verification", _JSON),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.ForeignKeyConstraint(["job_id", "attempt"], ["runs.owner", "runs.number"]),
        sa.UniqueConstraint("uri"),
        sa.Index(None, "job_id", "step"),
        sa.Index(None, "state"),
    )
    op.create_table(
        "evaluations",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("job_id", _ID, sa.ForeignKey("jobs.id"), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.Double, nullable=False),
        sa.Column("subject", sa.String(50), nullable=False),
        sa.Column("metrics", _JSON, nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Index(None, "job_id", "step"),
    )
    op.create_table(
        "events",
        sa.Column("job_id", _ID, sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("type", sa.String(50), nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("data", _JSON, nullable=False),
        sa.Column("position", sa.BigInteger),
        sa.Column("tenant", sa.String(100)),
        sa.Column("level", sa.String(10)),
        sa.Index("ix_events_unplaced", "job_id", **_where("position IS NULL")),
        sa.Index(None, "position", unique=True),
        sa.Index(None, "tenant", "level", "position"),
        sa.Index(None, "tenant", "type", "position"),
    )
    op.create_table(
        "job_tags",
        sa.Column("tenant", sa.String(100), primary_key=True),
        sa.Column("key", sa.String(63), primary_key=True),
        sa.Column("value", sa.String(63), primary_key=True),
        sa.Column("job_id", _ID, sa.ForeignKey("jobs.id"), primary_key=True, index=True),
    )
    op.create_table(
        "metrics",
        sa.Column("job_id", _ID, sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("name", sa.String(100), primary_key=True),
        sa.Column("step", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("time", sa.Double, nullable=False),
        sa.Column("value", sa.Double, nullable=False),
    )
    op.execute("INSERT INTO event_counter (id, last) VALUES (1, 0)")
