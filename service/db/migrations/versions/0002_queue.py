"""Quotas, clones, progress of attempts, pinned checkpoints, the audit log, indexes for lists of jobs."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_JOB_LISTS = (["tenant", "status", "id"], ["tenant", "method", "id"])


def upgrade() -> None:
    for quota in ("max_queued_jobs", "max_running_jobs", "max_gpus"):
        op.add_column("tokens", sa.Column(quota, sa.Integer(), nullable=True))
    op.add_column("jobs", sa.Column("token_id", sa.String(length=40), nullable=True))
    op.add_column("jobs", sa.Column("start_checkpoint_id", sa.String(length=40), nullable=True))
    op.create_index(op.f("ix_jobs_token_id_status"), "jobs", ["token_id", "status"], unique=False)
    op.add_column("attempts", sa.Column("progressed_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column(
        "checkpoints",
        sa.Column("pinned", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
    op.create_index(op.f("ix_checkpoints_state"), "checkpoints", ["state"], unique=False)
    op.create_table(
        "audit_entries",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("tenant", sa.String(length=100), nullable=False),
        sa.Column("token_id", sa.String(length=40), nullable=False),
        sa.Column("method", sa.String(length=10), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("address", sa.String(length=100), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_entries")),
    )
    op.create_index(
        op.f("ix_audit_entries_tenant_id"), "audit_entries", ["tenant", "id"], unique=False
    )
    for columns in _JOB_LISTS:
        op.create_index(op.f(f"ix_jobs_{'_'.join(columns)}"), "jobs", columns, unique=False)
    op.create_index(op.f("ix_attempts_finished_at"), "attempts", ["finished_at"], unique=False)
    tags = op.create_table(
        "job_tags",
        sa.Column("tenant", sa.String(length=100), nullable=False),
        sa.Column("key", sa.String(length=63), nullable=False),
        sa.Column("value", sa.String(length=63), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_tags_job_id_jobs")),
        sa.PrimaryKeyConstraint("tenant", "key", "value", "job_id", name=op.f("pk_job_tags")),
    )
    op.create_index(op.f("ix_job_tags_job_id"), "job_tags", ["job_id"], unique=False)
    _index_tags(tags)


def _index_tags(tags: sa.Table) -> None:
    """Those of the jobs that there are."""
    jobs = sa.table("jobs", sa.column("id"), sa.column("tenant"), sa.column("tags", sa.JSON()))
    connection = op.get_bind()
    for rows in connection.execute(sa.select(jobs.c.tenant, jobs.c.id, jobs.c.tags)).partitions(
        1000
    ):
        found = [
            {"tenant": tenant, "job_id": id, "key": key, "value": value}
            for tenant, id, own in rows
            for key, value in own.items()
        ]
        if found:
            connection.execute(sa.insert(tags), found)


def downgrade() -> None:
    op.drop_table("job_tags")
    op.drop_index(op.f("ix_attempts_finished_at"), table_name="attempts")
    for columns in _JOB_LISTS:
        op.drop_index(op.f(f"ix_jobs_{'_'.join(columns)}"), table_name="jobs")
    op.drop_table("audit_entries")
    op.drop_index(op.f("ix_checkpoints_state"), table_name="checkpoints")
    op.drop_column("checkpoints", "pinned")
    op.drop_column("attempts", "progressed_at")
    op.drop_index(op.f("ix_jobs_token_id_status"), table_name="jobs")
    for column in ("start_checkpoint_id", "token_id"):
        op.drop_column("jobs", column)
    for quota in ("max_queued_jobs", "max_running_jobs", "max_gpus"):
        op.drop_column("tokens", quota)
