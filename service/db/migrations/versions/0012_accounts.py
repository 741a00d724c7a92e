"""Users, expiry and last use of tokens, logins, and the owner and progress of ingests.

Tenants whose first token was created without a row get one.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_time = sa.DateTime(timezone=True)
_json = sa.JSON().with_variant(JSONB(), "postgresql")


def upgrade() -> None:
    op.create_table(
        "users",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("tenant", sa.String(100), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("email", sa.String(320), nullable=True),
        sa.Column("role", sa.String(20), nullable=False),
        sa.Column("issuer", sa.String(500), nullable=True),
        sa.Column("subject", sa.String(255), nullable=True),
        sa.Column("created_at", _time, nullable=False),
        sa.Column("last_login_at", _time, nullable=True),
        sa.Column("disabled_at", _time, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_users"),
        sa.UniqueConstraint("tenant", "issuer", "subject", name="uq_users_tenant_issuer_subject"),
    )
    op.create_index("ix_users_tenant_id", "users", ["tenant", "id"])
    op.create_table(
        "logins",
        sa.Column("state_hash", sa.String(64), nullable=False),
        sa.Column("secret_hash", sa.String(64), nullable=False),
        sa.Column("nonce", sa.String(64), nullable=False),
        sa.Column("code_verifier", sa.String(128), nullable=False),
        sa.Column("redirect_uri", sa.String(200), nullable=False),
        sa.Column("expires_at", _time, nullable=False),
        sa.PrimaryKeyConstraint("state_hash", name="pk_logins"),
    )
    op.create_index("ix_logins_expires_at", "logins", ["expires_at"])
    op.add_column("tokens", sa.Column("user_id", sa.String(40), nullable=True))
    op.add_column("tokens", sa.Column("max_pending_datasets", sa.Integer(), nullable=True))
    op.add_column("tokens", sa.Column("expires_at", _time, nullable=True))
    op.add_column("tokens", sa.Column("last_used_at", _time, nullable=True))
    op.create_index("ix_tokens_user_id", "tokens", ["user_id"])
    op.add_column("datasets", sa.Column("progress", _json, nullable=True))
    op.add_column("datasets", sa.Column("token_id", sa.String(40), nullable=True))
    op.create_index("ix_datasets_token_id_state", "datasets", ["token_id", "state"])
    op.execute(
        "INSERT INTO tenants (name, created_at) SELECT tenant, min(created_at) FROM tokens "
        "WHERE tenant NOT IN (SELECT name FROM tenants) GROUP BY tenant"
    )


def downgrade() -> None:
    op.drop_index("ix_datasets_token_id_state", table_name="datasets")
    op.drop_column("datasets", "token_id")
    op.drop_column("datasets", "progress")
    op.drop_index("ix_tokens_user_id", table_name="tokens")
    for column in ("last_used_at", "expires_at", "max_pending_datasets", "user_id"):
        op.drop_column("tokens", column)
    op.drop_table("logins")
    op.drop_table("users")
