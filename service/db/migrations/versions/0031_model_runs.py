"""Runs of finished models, and searches among embeddings."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

_JSON = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


def _task(table: str, *columns: sa.Column[Any], has_dataset: bool = True) -> None:
    op.create_table(
        table,
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("tenant", sa.String(100), nullable=False),
        sa.Column("dataset_id", sa.String(40), nullable=not has_dataset),
        *columns,
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("error", _JSON),
        sa.Column("token_id", sa.String(40)),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True)),
        sa.Column("deleted_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("id", name=f"pk_{table}"),
        sa.ForeignKeyConstraint(
            ["dataset_id"], ["datasets.id"], name=f"fk_{table}_dataset_id_datasets"
        ),
    )
    for first, second in (("dataset_id", "id"), ("state", "id"), ("token_id", "state")):
        op.create_index(f"ix_{table}_{first}_{second}", table, [first, second])


def upgrade() -> None:
    _task(
        "model_runs",
        sa.Column("dataset_version", sa.Integer),
        sa.Column("checkpoint_id", sa.String(40), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("settings", _JSON, nullable=False),
        sa.Column("progress", _JSON),
        sa.Column("result", _JSON),
        sa.Column("uri", sa.Text),
        sa.Column("files", _JSON, nullable=False),
        sa.Column("size", sa.BigInteger),
        has_dataset=False,
    )
    op.create_index("ix_model_runs_checkpoint_id", "model_runs", ["checkpoint_id"])
    _task(
        "searches",
        sa.Column("embedding_id", sa.String(40), nullable=False),
        sa.Column("asked_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index("ix_searches_embedding_id", "searches", ["embedding_id"])
    op.create_table(
        "search_queries",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("embedding_id", sa.String(40), nullable=False),
        sa.Column("key", sa.Text),
        sa.Column("image", sa.LargeBinary),
        sa.Column("k", sa.Integer, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("answer", _JSON),
        sa.PrimaryKeyConstraint("id", name="pk_search_queries"),
    )
    op.create_index("ix_search_queries_embedding_id", "search_queries", ["embedding_id"])


def downgrade() -> None:
    # Their runs would be of kinds that the version before does not know.
    op.execute("DELETE FROM runs WHERE kind IN ('model', 'search')")
    for table in ("search_queries", "searches", "model_runs"):
        op.drop_table(table)
