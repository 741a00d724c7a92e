"""Properties of nodes, drained nodes, and the number of workers of jobs and attempts."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_JSON = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    # Not in `nodes`: the version before reads these with all of their keys.
    op.add_column("cluster_snapshot", sa.Column("node_details", _JSON, nullable=True))
    op.create_table(
        "drains",
        sa.Column("node", sa.String(200), nullable=False),
        sa.Column("save", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("tenant", sa.String(100), nullable=False),
        sa.Column("token_id", sa.String(40), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("node", name="pk_drains"),
    )
    op.add_column("jobs", sa.Column("workers", sa.Integer(), nullable=True))
    op.add_column("runs", sa.Column("workers", sa.Integer(), nullable=True))


def downgrade() -> None:
    op.drop_column("runs", "workers")
    op.drop_column("jobs", "workers")
    op.drop_table("drains")
    op.drop_column("cluster_snapshot", "node_details")
