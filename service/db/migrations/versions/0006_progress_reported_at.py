"""`runs.rank_heard_at` becomes `progress_reported_at`: liveness and progress are two rules.

On PostgreSQL the view `attempts` of migration 0004 keeps the old name for processes of version 0.1.
"""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Both databases know this statement; Alembic would copy SQLite's table.
    op.execute("ALTER TABLE runs RENAME COLUMN rank_heard_at TO progress_reported_at")


def downgrade() -> None:
    op.execute("ALTER TABLE runs RENAME COLUMN progress_reported_at TO rank_heard_at")
