"""The token that asked for the newest ingest of a data set, whose quota it uses."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("datasets", sa.Column("refresh_token_id", sa.String(40), nullable=True))


def downgrade() -> None:
    op.drop_column("datasets", "refresh_token_id")
