"""What the dispatcher reports of itself, and the type of a run's error: both for the metrics."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    json = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
    op.add_column("cluster_snapshot", sa.Column("dispatcher", json, nullable=True))
    op.add_column("runs", sa.Column("error_type", sa.String(200), nullable=True))
    postgresql = op.get_bind().dialect.name == "postgresql"
    kind = "error ->> 'type'" if postgresql else "json_extract(error, '$.type')"
    op.execute(f"UPDATE runs SET error_type = substr({kind}, 1, 200) WHERE error IS NOT NULL")


def downgrade() -> None:
    op.drop_column("runs", "error_type")
    op.drop_column("cluster_snapshot", "dispatcher")
