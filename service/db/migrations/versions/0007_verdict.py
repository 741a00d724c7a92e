"""The verdict on a job's training."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "jobs", sa.Column("verdict", sa.JSON().with_variant(JSONB(), "postgresql"), nullable=True)
    )


def downgrade() -> None:
    op.drop_column("jobs", "verdict")
