"""Webhooks and the outbox of their messages."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

_JSON = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
_TIME = sa.DateTime(timezone=True)
_PENDING = sa.text("state = 'pending'")


def upgrade() -> None:
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("tenant", sa.String(100), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("events", _JSON, nullable=False),
        sa.Column("tags", _JSON, nullable=False),
        sa.Column("format", sa.String(20), nullable=False),
        sa.Column("secret", sa.String(100), nullable=False),
        sa.Column("previous_secret", sa.String(100)),
        sa.Column("previous_secret_until", _TIME),
        sa.Column("token_id", sa.String(40)),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("last_success_at", _TIME),
        sa.Column("disabled_at", _TIME),
        sa.Column("disabled_reason", sa.Text),
        sa.PrimaryKeyConstraint("id", name="pk_webhooks"),
    )
    op.create_index("ix_webhooks_tenant_id", "webhooks", ["tenant", "id"])
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("webhook_id", sa.String(40), nullable=False),
        sa.Column("tenant", sa.String(100), nullable=False),
        sa.Column("type", sa.String(50), nullable=False),
        sa.Column("message", _JSON, nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("queued_at", _TIME, nullable=False),
        sa.Column("next_at", _TIME, nullable=False),
        sa.Column("attempted_at", _TIME),
        sa.Column("seconds", sa.Double),
        sa.Column("response_status", sa.Integer),
        sa.Column("error", sa.Text),
        sa.Column("finished_at", _TIME),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_deliveries"),
    )
    op.create_index(
        "ix_webhook_deliveries_webhook_id_id", "webhook_deliveries", ["webhook_id", "id"]
    )
    op.create_index(
        "ix_webhook_deliveries_due",
        "webhook_deliveries",
        ["webhook_id", "next_at"],
        sqlite_where=_PENDING,
        postgresql_where=_PENDING,
    )
    op.create_index("ix_webhook_deliveries_finished_at", "webhook_deliveries", ["finished_at"])


def downgrade() -> None:
    op.drop_table("webhook_deliveries")
    op.drop_table("webhooks")
