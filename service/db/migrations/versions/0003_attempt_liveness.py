"""Columns of attempts: last report of rank 0, confirmed runtime, and whether the attempt is finalized."""

from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

# Earlier versions finalized only attempts that had ended within this time.
_FINALIZED_WITHIN = timedelta(days=1)


def upgrade() -> None:
    op.add_column("attempts", sa.Column("rank_heard_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column(
        "attempts",
        sa.Column("ran_seconds", sa.Double(), nullable=False, server_default=sa.text("0")),
    )
    op.add_column(
        "attempts",
        sa.Column("settled", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
    _fill_columns()
    op.drop_index(op.f("ix_attempts_finished_at"), table_name="attempts")
    op.create_index(op.f("ix_attempts_settled"), "attempts", ["settled"], unique=False)
    op.create_index(
        op.f("ix_jobs_start_checkpoint_id"), "jobs", ["start_checkpoint_id"], unique=False
    )


def _fill_columns() -> None:
    """Set the runtime of existing attempts, and mark those that ended long ago as finalized."""
    attempts = sa.table(
        "attempts",
        sa.column("job_id"),
        sa.column("number"),
        sa.column("created_at", sa.DateTime(timezone=True)),
        sa.column("heartbeat_at", sa.DateTime(timezone=True)),
        sa.column("finished_at", sa.DateTime(timezone=True)),
        sa.column("ran_seconds", sa.Double()),
        sa.column("settled", sa.Boolean()),
    )
    connection = op.get_bind()
    before = datetime.now(UTC) - _FINALIZED_WITHIN
    connection.execute(
        sa.update(attempts).where(attempts.c.finished_at < before).values(settled=True)
    )
    rows = connection.execute(
        sa.select(
            attempts.c.job_id, attempts.c.number, attempts.c.created_at, attempts.c.heartbeat_at
        ).where(attempts.c.heartbeat_at.is_not(None))
    )
    runtimes = [
        {"id": job_id, "nth": number, "seconds": (heartbeat - created).total_seconds()}
        for job_id, number, created, heartbeat in rows
    ]
    if runtimes:
        connection.execute(
            sa.update(attempts)
            .where(
                attempts.c.job_id == sa.bindparam("id"), attempts.c.number == sa.bindparam("nth")
            )
            .values(ran_seconds=sa.bindparam("seconds")),
            runtimes,
        )


def downgrade() -> None:
    op.drop_index(op.f("ix_jobs_start_checkpoint_id"), table_name="jobs")
    op.drop_index(op.f("ix_attempts_settled"), table_name="attempts")
    op.create_index(op.f("ix_attempts_finished_at"), "attempts", ["finished_at"], unique=False)
    for column in ("rank_heard_at", "ran_seconds", "settled"):
        op.drop_column("attempts", column)
