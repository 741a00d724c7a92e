"""Versions of data sets, and which of them jobs run on."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

_JSON = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
_INDEX = "ix_datasets_refresh_state"


def upgrade() -> None:
    time = sa.DateTime(timezone=True)
    op.create_table(
        "dataset_versions",
        sa.Column("dataset_id", sa.String(40), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("index_uri", sa.Text(), nullable=True),
        sa.Column("facts", _JSON, nullable=False),
        sa.Column("report", _JSON, nullable=True),
        sa.Column("created_at", time, nullable=False),
        sa.Column("removed_at", time, nullable=True),
        sa.PrimaryKeyConstraint("dataset_id", "number", name="pk_dataset_versions"),
        sa.ForeignKeyConstraint(
            ["dataset_id"], ["datasets.id"], name="fk_dataset_versions_dataset_id_datasets"
        ),
    )
    op.execute(
        "INSERT INTO dataset_versions (dataset_id, number, index_uri, facts, report, created_at) "
        "SELECT id, 1, index_uri, facts, report, created_at FROM datasets "
        "WHERE state = 'ready' AND facts IS NOT NULL"
    )
    one, zero = sa.text("1"), sa.text("0")
    op.add_column(
        "datasets", sa.Column("version", sa.Integer(), nullable=False, server_default=one)
    )
    op.add_column("datasets", sa.Column("refresh_state", sa.String(20), nullable=True))
    op.add_column("datasets", sa.Column("refresh_error", _JSON, nullable=True))
    op.add_column("datasets", sa.Column("refresh_requested_at", time, nullable=True))
    op.add_column(
        "datasets", sa.Column("ingest_after", sa.Integer(), nullable=False, server_default=zero)
    )
    op.create_index(_INDEX, "datasets", ["refresh_state"])
    op.add_column(
        "jobs", sa.Column("dataset_version", sa.Integer(), nullable=False, server_default=one)
    )
    op.add_column("jobs", sa.Column("evaluate_dataset_version", sa.Integer(), nullable=True))


def downgrade() -> None:
    for column in ("evaluate_dataset_version", "dataset_version"):
        op.drop_column("jobs", column)
    op.drop_index(_INDEX, "datasets")
    for column in (
        "ingest_after",
        "refresh_requested_at",
        "refresh_error",
        "refresh_state",
        "version",
    ):
        op.drop_column("datasets", column)
    op.drop_table("dataset_versions")
