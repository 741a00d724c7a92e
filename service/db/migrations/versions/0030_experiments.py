"""Experiments, and the place of a job in one."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

_JSON = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "experiments",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("tenant", sa.String(100), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("spec", _JSON, nullable=False),
        sa.Column("variants", _JSON, nullable=False),
        sa.Column("seeds", _JSON, nullable=False),
        sa.Column("baseline", sa.String(100), nullable=False),
        sa.Column("metric", sa.String(50)),
        sa.Column("token_id", sa.String(40)),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_experiments"),
    )
    op.create_index("ix_experiments_tenant_id", "experiments", ["tenant", "id"])
    op.add_column("jobs", sa.Column("experiment_id", sa.String(40), nullable=True))
    op.add_column("jobs", sa.Column("variant", sa.String(100), nullable=True))
    op.add_column("jobs", sa.Column("seed", sa.BigInteger(), nullable=True))
    op.create_index("ix_jobs_experiment_id_id", "jobs", ["experiment_id", "id"])


def downgrade() -> None:
    op.drop_index("ix_jobs_experiment_id_id", "jobs")
    op.drop_column("jobs", "seed")
    op.drop_column("jobs", "variant")
    op.drop_column("jobs", "experiment_id")
    op.drop_table("experiments")
