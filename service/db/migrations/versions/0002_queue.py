"""Quotas, clones, progress of attempts, pinned checkpoints, the audit trail."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


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


def downgrade() -> None:
    op.drop_table("audit_entries")
    op.drop_index(op.f("ix_checkpoints_state"), table_name="checkpoints")
    op.drop_column("checkpoints", "pinned")
    op.drop_column("attempts", "progressed_at")
    op.drop_index(op.f("ix_jobs_token_id_status"), table_name="jobs")
    for column in ("start_checkpoint_id", "token_id"):
        op.drop_column("jobs", column)
    for quota in ("max_queued_jobs", "max_running_jobs", "max_gpus"):
        op.drop_column("tokens", quota)
