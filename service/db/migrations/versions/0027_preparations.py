"""Preparations of data sets."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

_JSON = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "preparations",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("tenant", sa.String(100), nullable=False),
        sa.Column("dataset_id", sa.String(40), nullable=False),
        sa.Column("dataset_version", sa.Integer, nullable=False),
        sa.Column("image_size", sa.Integer, nullable=False),
        sa.Column("channels", sa.Integer, nullable=False),
        sa.Column("image_cache", sa.String(20), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("progress", _JSON),
        sa.Column("result", _JSON),
        sa.Column("error", _JSON),
        sa.Column("token_id", sa.String(40)),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True)),
        sa.Column("deleted_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("id", name="pk_preparations"),
        sa.ForeignKeyConstraint(
            ["dataset_id"], ["datasets.id"], name="fk_preparations_dataset_id_datasets"
        ),
    )
    op.create_index("ix_preparations_dataset_id_id", "preparations", ["dataset_id", "id"])
    op.create_index("ix_preparations_state_id", "preparations", ["state", "id"])
    op.create_index("ix_preparations_token_id_state", "preparations", ["token_id", "state"])


def downgrade() -> None:
    # Its runs would be of a kind that the version before does not know.
    op.execute("DELETE FROM runs WHERE kind = 'prepare'")
    op.drop_table("preparations")
