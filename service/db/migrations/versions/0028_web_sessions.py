"""Sessions of the page, and the codes that start them."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("web_sessions", "login_codes"):
        op.create_table(
            name,
            sa.Column("hash", sa.String(64), nullable=False),
            sa.Column("token_id", sa.String(40), nullable=False),
            sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
            sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
            sa.PrimaryKeyConstraint("hash", name=f"pk_{name}"),
            sa.ForeignKeyConstraint(
                ["token_id"], ["tokens.id"], name=f"fk_{name}_token_id_tokens", ondelete="CASCADE"
            ),
        )
        op.create_index(f"ix_{name}_token_id", name, ["token_id"])
        op.create_index(f"ix_{name}_expires_at", name, ["expires_at"])


def downgrade() -> None:
    op.drop_table("login_codes")
    op.drop_table("web_sessions")
