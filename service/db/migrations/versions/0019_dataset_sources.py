"""Options of a data set's source."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


_JSON = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.add_column("datasets", sa.Column("source", _JSON, nullable=True))


def downgrade() -> None:
    op.drop_column("datasets", "source")
