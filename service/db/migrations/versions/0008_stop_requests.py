"""Requests of the service itself to stop an attempt, and a time limit that replaces that of a job's spec."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("stop_reason", sa.String(20), nullable=True))
    op.add_column("runs", sa.Column("stop_requested_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("jobs", sa.Column("max_hours", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "max_hours")
    op.drop_column("runs", "stop_requested_at")
    op.drop_column("runs", "stop_reason")
