"""Previews of data sets."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


_JSON = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "previews",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("tenant", sa.String(100), nullable=False),
        sa.Column("dataset_id", sa.String(40), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("spec", _JSON, nullable=False),
        sa.Column("resolved", _JSON, nullable=False),
        sa.Column("spec_version", sa.Integer, nullable=False),
        sa.Column("images", sa.Integer, nullable=False),
        sa.Column("uri", sa.Text),
        sa.Column("files", _JSON, nullable=False),
        sa.Column("error", _JSON),
        sa.Column("token_id", sa.String(40)),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True)),
        sa.Column("deleted_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("id", name="pk_previews"),
        sa.ForeignKeyConstraint(
            ["dataset_id"], ["datasets.id"], name="fk_previews_dataset_id_datasets"
        ),
    )
    op.create_index("ix_previews_dataset_id_id", "previews", ["dataset_id", "id"])
    op.create_index("ix_previews_state_id", "previews", ["state", "id"])
    op.create_index("ix_previews_token_id_state", "previews", ["token_id", "state"])


def downgrade() -> None:
    # Its runs would be of a kind that the version before does not know.
    op.execute("DELETE FROM runs WHERE kind = 'preview'")
    op.drop_table("previews")
