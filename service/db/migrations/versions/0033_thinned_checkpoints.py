"""Retention of checkpoints by age, which now has a default: jobs that had ended before keep theirs."""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

_OLD_CHECKPOINTS = sa.text(
    "finished_at IS NOT NULL AND deleted_at IS NULL AND NOT checkpoints_thinned"
)


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        # No row is rewritten but those of jobs that have not ended.
        op.add_column("jobs", sa.Column("checkpoints_thinned", sa.Boolean, nullable=True))
        op.alter_column("jobs", "checkpoints_thinned", server_default=sa.false())
        op.execute("UPDATE jobs SET checkpoints_thinned = false WHERE finished_at IS NULL")
    else:
        op.add_column(
            "jobs",
            sa.Column("checkpoints_thinned", sa.Boolean, nullable=True, server_default=sa.false()),
        )
        op.execute("UPDATE jobs SET checkpoints_thinned = NULL WHERE finished_at IS NOT NULL")
    op.create_index(
        "ix_jobs_old_checkpoints",
        "jobs",
        ["finished_at", "id"],
        sqlite_where=_OLD_CHECKPOINTS,
        postgresql_where=_OLD_CHECKPOINTS,
    )


def downgrade() -> None:
    op.drop_index("ix_jobs_old_checkpoints", "jobs")
    op.drop_column("jobs", "checkpoints_thinned")
