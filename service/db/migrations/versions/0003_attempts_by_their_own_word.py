"""What rank 0 said last, the time in which an attempt was heard of, and which were seen off."""

from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

# Until now nobody looked after attempts that had ended longer ago than this.
_LOOKED_AFTER = timedelta(days=1)


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
    _carry_over()
    op.drop_index(op.f("ix_attempts_finished_at"), table_name="attempts")
    op.create_index(op.f("ix_attempts_settled"), "attempts", ["settled"], unique=False)
    op.create_index(
        op.f("ix_jobs_start_checkpoint_id"), "jobs", ["start_checkpoint_id"], unique=False
    )


def _carry_over() -> None:
    """The time that attempts took until now, and those that are long over."""
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
    before = datetime.now(UTC) - _LOOKED_AFTER
    connection.execute(
        sa.update(attempts).where(attempts.c.finished_at < before).values(settled=True)
    )
    heard = connection.execute(
        sa.select(
            attempts.c.job_id, attempts.c.number, attempts.c.created_at, attempts.c.heartbeat_at
        ).where(attempts.c.heartbeat_at.is_not(None))
    )
    took = [
        {"id": job_id, "nth": number, "seconds": (heartbeat - created).total_seconds()}
        for job_id, number, created, heartbeat in heard
    ]
    if took:
        connection.execute(
            sa.update(attempts)
            .where(
                attempts.c.job_id == sa.bindparam("id"), attempts.c.number == sa.bindparam("nth")
            )
            .values(ran_seconds=sa.bindparam("seconds")),
            took,
        )


def downgrade() -> None:
    op.drop_index(op.f("ix_jobs_start_checkpoint_id"), table_name="jobs")
    op.drop_index(op.f("ix_attempts_settled"), table_name="attempts")
    op.create_index(op.f("ix_attempts_finished_at"), "attempts", ["finished_at"], unique=False)
    for column in ("rank_heard_at", "ran_seconds", "settled"):
        op.drop_column("attempts", column)
