"""How far the metrics of each job are thinned; those of all existing jobs are not."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_UNTHINNED = sa.text("attempt > 0 AND NOT thinned")


def upgrade() -> None:
    for column in (
        sa.Column("thinned_attempt", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("thinned_step", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        sa.Column("thinned", sa.Boolean(), nullable=False, server_default=sa.false()),
    ):
        op.add_column("jobs", column)
    op.create_index(
        "ix_jobs_unthinned",
        "jobs",
        ["id"],
        sqlite_where=_UNTHINNED,
        postgresql_where=_UNTHINNED,
    )


def downgrade() -> None:
    op.drop_index("ix_jobs_unthinned", "jobs")
    for name in ("thinned", "thinned_step", "thinned_attempt"):
        op.drop_column("jobs", name)
