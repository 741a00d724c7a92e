"""Nodes that are away for a short time, and the CPUs that jobs had before these left."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

_JSON = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("first_cpus_per_worker", sa.Integer(), nullable=True))
    op.add_column("cluster_snapshot", sa.Column("nodes_away", _JSON, nullable=True))


def downgrade() -> None:
    op.drop_column("cluster_snapshot", "nodes_away")
    op.drop_column("jobs", "first_cpus_per_worker")
