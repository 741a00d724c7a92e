"""Old idempotency keys are removed, and deleted checkpoints have no manifest."""

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

_INDEX = "ix_idempotency_keys_created_at"


def upgrade() -> None:
    # Before the index, whose creation locks its table until the end of this transaction.
    op.execute("UPDATE checkpoints SET files = '[]' WHERE state = 'deleted'")
    op.create_index(_INDEX, "idempotency_keys", ["created_at"])


def downgrade() -> None:
    op.drop_index(_INDEX, "idempotency_keys")
