"""Tenants: shares of the cluster and limits. Those that have tokens get a row with the defaults."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "tenants",
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("weight", sa.Double(), nullable=False, server_default=sa.text("1")),
        sa.Column("max_queued_jobs", sa.Integer(), nullable=True),
        sa.Column("max_running_jobs", sa.Integer(), nullable=True),
        sa.Column("max_gpus", sa.Integer(), nullable=True),
        sa.Column("max_priority", sa.Integer(), nullable=True),
        sa.Column("max_hours", sa.Double(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("disabled_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("name", name="pk_tenants"),
    )
    op.execute(
        "INSERT INTO tenants (name, created_at) "
        "SELECT tenant, min(created_at) FROM tokens GROUP BY tenant"
    )


def downgrade() -> None:
    op.drop_table("tenants")
