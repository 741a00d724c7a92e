"""What the workers of a job's newest attempt have in place of "auto" of its spec."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("cpus_per_worker", sa.Integer(), nullable=True))
    op.add_column("jobs", sa.Column("gpus_per_worker", sa.Integer(), nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "gpus_per_worker")
    op.drop_column("jobs", "cpus_per_worker")
