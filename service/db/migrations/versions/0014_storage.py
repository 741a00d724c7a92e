"""Deletion of jobs, retention by age and size, and sizes of checkpoints, which the dispatcher fills in."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_TIMES = ("deleted_at", "logs_removed_at", "metrics_removed_at", "artifacts_removed_at")


def upgrade() -> None:
    for column in _TIMES:
        op.add_column("jobs", sa.Column(column, sa.DateTime(timezone=True), nullable=True))
    op.create_index(
        op.f("ix_jobs_deleted_at"),
        "jobs",
        ["deleted_at"],
        unique=False,
        sqlite_where=sa.text("deleted_at IS NOT NULL"),
        postgresql_where=sa.text("deleted_at IS NOT NULL"),
    )
    op.add_column("checkpoints", sa.Column("size", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("checkpoints", "size")
    op.drop_index(op.f("ix_jobs_deleted_at"), table_name="jobs")
    for column in reversed(_TIMES):
        op.drop_column("jobs", column)
