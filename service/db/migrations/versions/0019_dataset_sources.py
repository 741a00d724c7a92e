"""Options of a data set's source."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("datasets", sa.Column("source", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("datasets", "source")
