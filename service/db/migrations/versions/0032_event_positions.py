"""The order of the events of all jobs, with copies of their tenants and levels."""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

_WARNINGS = (
    "checkpoint_damaged",
    "checkpoint_failed",
    "classifier_not_measured",
    "images_damaged",
    "images_not_cached",
    "images_unreadable",
    "input_bound",
    "nan",
    "no_gpus",
    "nothing_held_out",
    "onnx_missing",
    "pictures_missing",
    "service-restarted",
    "step_skipped",
)


def upgrade() -> None:
    op.add_column("events", sa.Column("position", sa.BigInteger, nullable=True))
    op.add_column("events", sa.Column("tenant", sa.String(100), nullable=True))
    op.add_column("events", sa.Column("level", sa.String(10), nullable=True))
    to, error, verdict = (
        f"events.data ->> '{key}'"
        if op.get_bind().dialect.name == "postgresql"
        else f"json_extract(events.data, '$.{key}')"
        for key in ("to", "error", "verdict")
    )
    warnings = ", ".join(f"'{name}'" for name in _WARNINGS)
    op.execute(
        f"""
        UPDATE events SET position = numbered.position, tenant = numbered.tenant, level = numbered.level
        FROM (
            SELECT events.job_id, events.seq, jobs.tenant,
                row_number() OVER (ORDER BY events.at, events.job_id, events.seq) AS position,
                CASE
                    WHEN type = 'status' AND {to} = 'failed' THEN 'error'
                    WHEN type = 'status' AND {error} IS NOT NULL THEN 'warning'
                    WHEN type = 'verdict' AND {verdict} = 'collapsed' THEN 'error'
                    WHEN type = 'verdict' AND {verdict} IN ('falling', 'no_better') THEN 'warning'
                    WHEN type = 'collapse' THEN 'error'
                    WHEN type IN ({warnings}) THEN 'warning'
                    ELSE 'info'
                END AS level
            FROM events JOIN jobs ON jobs.id = events.job_id
        ) AS numbered
        WHERE events.job_id = numbered.job_id AND events.seq = numbered.seq
        """
    )
    op.create_table(
        "event_counter",
        sa.Column("id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("last", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_event_counter"),
    )
    op.execute("INSERT INTO event_counter SELECT 1, coalesce(max(position), 0) FROM events")
    op.create_index("ix_events_tenant_level_position", "events", ["tenant", "level", "position"])
    op.create_index("ix_events_tenant_type_position", "events", ["tenant", "type", "position"])
    op.create_index("ix_events_position", "events", ["position"], unique=True)
    unplaced = sa.text("position IS NULL")
    op.create_index(
        "ix_events_unplaced",
        "events",
        ["job_id"],
        sqlite_where=unplaced,
        postgresql_where=unplaced,
    )


def downgrade() -> None:
    for name in ("unplaced", "position", "tenant_type_position", "tenant_level_position"):
        op.drop_index(f"ix_events_{name}", "events")
    op.drop_table("event_counter")
    for column in ("level", "tenant", "position"):
        op.drop_column("events", column)
