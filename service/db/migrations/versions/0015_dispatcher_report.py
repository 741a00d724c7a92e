"""What the dispatcher reports of itself, in the row of its cluster snapshot."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0015"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    json = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
    op.add_column("cluster_snapshot", sa.Column("dispatcher", json, nullable=True))


def downgrade() -> None:
    op.drop_column("cluster_snapshot", "dispatcher")
