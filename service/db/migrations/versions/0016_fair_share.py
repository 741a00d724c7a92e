"""Fair share: the ledger of use, and jobs that give way to others."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_QUEUE = "ix_jobs_status_preemptible_priority_tenant_token_id_id"


def upgrade() -> None:
    preemptible: sa.Column[bool] = sa.Column(
        "preemptible", sa.Boolean(), nullable=False, server_default=sa.false()
    )
    op.add_column("jobs", preemptible)
    order = ["status", "preemptible", "priority", "tenant", "token_id", "id"]
    op.create_index(_QUEUE, "jobs", order)
    op.create_table(
        "usage",
        sa.Column("job_id", sa.String(40), nullable=False),
        sa.Column("hour", sa.DateTime(timezone=True), nullable=False),
        sa.Column("tenant", sa.String(100), nullable=False),
        sa.Column("token_id", sa.String(40), nullable=True),
        sa.Column("tags", sa.JSON().with_variant(JSONB(), "postgresql"), nullable=False),
        sa.Column("gpu_seconds", sa.Double(), nullable=False),
        sa.Column("cpu_seconds", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "hour", name="pk_usage"),
    )
    op.create_index("ix_usage_hour_tenant_token_id", "usage", ["hour", "tenant", "token_id"])


def downgrade() -> None:
    op.drop_table("usage")
    op.drop_index(_QUEUE, "jobs")
    op.drop_column("jobs", "preemptible")
