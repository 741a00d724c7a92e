"""The version of the data set that a preview is of, and the bytes of its files."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("previews", sa.Column("dataset_version", sa.Integer(), nullable=True))
    op.add_column("previews", sa.Column("size", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    for column in ("size", "dataset_version"):
        op.drop_column("previews", column)
