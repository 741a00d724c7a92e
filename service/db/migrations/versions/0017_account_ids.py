"""Accounts: jobs and their use are charged to the user of a token; and tokens that a login created."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_QUEUE = "ix_jobs_status_preemptible_priority_tenant_{}_id"
_ORDER = ["status", "preemptible", "priority", "tenant"]
# Rows of other tokens need no change.
_OF_USERS = "token_id IN (SELECT id FROM tokens WHERE user_id IS NOT NULL)"


def upgrade() -> None:
    for table in ("jobs", "usage"):
        op.add_column(table, sa.Column("account_id", sa.String(40), nullable=True))
    # The table is locked meanwhile, so the dispatcher adds the accounts of jobs that have ended.
    op.execute(
        "UPDATE jobs SET account_id = coalesce("
        "(SELECT user_id FROM tokens WHERE tokens.id = jobs.token_id), token_id) "
        "WHERE token_id IS NOT NULL AND status NOT IN ('succeeded', 'failed', 'cancelled')"
    )
    op.execute(
        "UPDATE usage SET account_id = "
        f"(SELECT user_id FROM tokens WHERE tokens.id = usage.token_id) WHERE {_OF_USERS}"
    )
    op.create_index("ix_jobs_account_id_status", "jobs", ["account_id", "status"])
    op.create_index(_QUEUE.format("account_id"), "jobs", [*_ORDER, "account_id", "id"])
    # The index with token_id stays: the version before may still run, and needs it.
    op.add_column("audit_entries", sa.Column("user_id", sa.String(40), nullable=True))
    op.execute(
        "UPDATE audit_entries SET user_id = "
        f"(SELECT user_id FROM tokens WHERE tokens.id = audit_entries.token_id) WHERE {_OF_USERS}"
    )
    op.add_column(
        "tokens",
        sa.Column("from_login", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
    # As the versions before named them.
    op.execute(
        "UPDATE tokens SET from_login = true "
        "WHERE name = 'dasl login' AND user_id IS NOT NULL AND expires_at IS NOT NULL"
    )
    op.add_column("logins", sa.Column("address", sa.String(100), nullable=True))


def downgrade() -> None:
    op.drop_column("logins", "address")
    op.drop_column("tokens", "from_login")
    op.drop_column("audit_entries", "user_id")
    op.drop_index(_QUEUE.format("account_id"), "jobs")
    op.drop_index("ix_jobs_account_id_status", "jobs")
    for table in ("usage", "jobs"):
        op.drop_column(table, "account_id")
