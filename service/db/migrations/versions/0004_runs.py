"""One table of runs, of any kind, instead of attempts and the ingest columns of data sets.

Expand: `datasets.attempt` and `token_hash` stay, and on PostgreSQL a view `attempts` takes the place of the
table, so that processes of version 0.1 keep working while a deployment is upgraded. (SQLite has one process.)
The next version drops them.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_JSON = sa.JSON().with_variant(JSONB(), "postgresql")
_LIVE = "('created', 'submitted', 'running')"
# Of an attempt, in the names of the table `attempts` and in those of `runs`.
_KEY, _OWNER = "job_id", "owner"
_SHARED = (
    "number, submission_id, state, token_hash, heartbeat_at, rank_heard_at, progressed_at, created_at, "
    "finished_at, ran_seconds, error, resume_checkpoint_id, settled"
)
_FILES = "fk_checkpoints_job_id_attempt_"


def upgrade() -> None:
    _create(
        "runs", _OWNER, sa.Column("kind", sa.String(20), nullable=False, server_default="train")
    )
    op.create_index(op.f("ix_runs_kind_state"), "runs", ["kind", "state"])
    op.create_index(op.f("ix_runs_settled"), "runs", ["settled"])
    op.execute(
        f"INSERT INTO runs (kind, {_OWNER}, {_SHARED}) SELECT 'train', {_KEY}, {_SHARED} FROM attempts"
    )
    _copy_ingest_runs()
    _point_checkpoints_to("runs", _OWNER, instead_of="attempts")
    op.drop_table("attempts")
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            f"CREATE VIEW attempts AS SELECT {_OWNER} AS {_KEY}, {_SHARED} FROM runs WHERE kind = 'train'"
        )


def _copy_ingest_runs() -> None:
    """Make a run of each data set's newest ingest. When it began and ended was not stored."""
    op.execute(
        "INSERT INTO runs (kind, owner, number, submission_id, state, token_hash, created_at, finished_at, "
        "error, settled) "
        "SELECT 'ingest', id, attempt, id || '-' || attempt, "
        "CASE state WHEN 'ingesting' THEN 'submitted' WHEN 'ready' THEN 'succeeded' ELSE 'failed' END, "
        "token_hash, created_at, CASE state WHEN 'ingesting' THEN NULL ELSE created_at END, error, "
        "state <> 'ingesting' "
        "FROM datasets WHERE attempt > 0 AND token_hash IS NOT NULL"
    )


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP VIEW attempts")
    _create(
        "attempts",
        _KEY,
        sa.ForeignKeyConstraint([_KEY], ["jobs.id"], name=op.f("fk_attempts_job_id_jobs")),
    )
    op.create_index(op.f("ix_attempts_state"), "attempts", ["state"])
    op.create_index(op.f("ix_attempts_settled"), "attempts", ["settled"])
    op.execute(
        f"INSERT INTO attempts ({_KEY}, {_SHARED}) SELECT {_OWNER}, {_SHARED} FROM runs WHERE kind = 'train'"
    )
    # Of a run that is under way; who ended need not be known.
    op.execute(
        "UPDATE datasets SET attempt = runs.number, token_hash = runs.token_hash FROM runs "
        f"WHERE runs.owner = datasets.id AND runs.kind = 'ingest' AND runs.state IN {_LIVE}"
    )
    _point_checkpoints_to("attempts", _KEY, instead_of="runs")
    op.drop_table("runs")


def _create(name: str, key: str, *extra: sa.Column[object] | sa.ForeignKeyConstraint) -> None:
    op.create_table(
        name,
        sa.Column(key, sa.String(40), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        *extra,
        sa.Column("submission_id", sa.String(60), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("token_hash", sa.String(64), nullable=False),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("rank_heard_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("progressed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ran_seconds", sa.Double(), nullable=False, server_default=sa.text("0")),
        sa.Column("error", _JSON, nullable=True),
        sa.Column("resume_checkpoint_id", sa.String(40), nullable=True),
        sa.Column("settled", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.PrimaryKeyConstraint(key, "number", name=op.f(f"pk_{name}")),
        sa.UniqueConstraint("submission_id", name=op.f(f"uq_{name}_submission_id")),
        sa.UniqueConstraint("token_hash", name=op.f(f"uq_{name}_token_hash")),
    )


def _point_checkpoints_to(table: str, key: str, *, instead_of: str) -> None:
    # SQLite copies `checkpoints` to a new table; the table it referred to can go only then.
    with op.batch_alter_table("checkpoints") as batch:
        batch.drop_constraint(op.f(_FILES + instead_of), type_="foreignkey")
        batch.create_foreign_key(
            op.f(_FILES + table), table, ["job_id", "attempt"], [key, "number"]
        )
