"""Uploaded images of data sets."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


_JSON = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
_COLUMNS: dict[str, Any] = {
    "upload_file": _JSON,
    "upload_size": sa.BigInteger(),
    "upload_received": sa.BigInteger(),
    "upload_received_at": sa.DateTime(timezone=True),
}


def upgrade() -> None:
    for name, kind in _COLUMNS.items():
        op.add_column("datasets", sa.Column(name, kind, nullable=True))
    op.create_table(
        "upload_chunks",
        sa.Column("dataset_id", sa.String(40), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("stop", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.ForeignKeyConstraint(
            ["dataset_id"], ["datasets.id"], name="fk_upload_chunks_dataset_id_datasets"
        ),
        sa.PrimaryKeyConstraint("dataset_id", "start", name="pk_upload_chunks"),
    )


def downgrade() -> None:
    op.drop_table("upload_chunks")
    # Versions before cannot continue them.
    op.execute("UPDATE datasets SET deleted_at = CURRENT_TIMESTAMP WHERE state = 'uploading'")
    for name in _COLUMNS:
        op.drop_column("datasets", name)
