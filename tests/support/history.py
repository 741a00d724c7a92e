"""A database with a long history: many ended rows in each table that grows with use."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    String,
    case,
    cast,
    insert,
    literal,
    literal_column,
    select,
    text,
    update,
)

from service.db.models import (
    Artifact,
    Attempt,
    AuditEntry,
    Checkpoint,
    Dataset,
    DatasetVersion,
    Evaluation,
    Event,
    EventCounter,
    Experiment,
    IdempotencyKey,
    Job,
    JobTag,
    Metric,
    ModelRun,
    Preparation,
    Preview,
    Search,
    Usage,
    WebhookDelivery,
)
from service.db.models.base import Base
from service.db.session import Database

ROWS = 100_000
TENANTS = 50
"""The history is theirs in turn; the first one is `default`."""
_ROWS_AN_HOUR = 5_000
_NUMBER = literal_column("number", Integer)


def add_history(database: Database) -> frozenset[str]:
    """Add 10^5 ended rows to each table that grows with use.

    Returns:
        The names of these tables.
    """
    tables = set[str]()
    with database.engine.begin() as connection:
        _add_datasets(connection)
        for first in range(1, ROWS, _ROWS_AN_HOUR):
            at = datetime.now(UTC) - timedelta(hours=2 + first // _ROWS_AN_HOUR)
            for table, values in _rows(at):
                tables.add(table.__tablename__)
                _insert(connection, table, values, first, _ROWS_AN_HOUR)
        connection.execute(update(EventCounter).values(last=ROWS))
    if (
        database.engine.dialect.name == "postgresql"
    ):  # its autovacuum does it; nothing does on SQLite
        with database.autocommit() as session:
            session.execute(text("ANALYZE"))
    return frozenset(tables)


def add_row(
    database: Database, table: type[Base], number: int, at: datetime, **changes: Any
) -> None:
    """Add a row of the history, in which everything happened at one time, with some columns changed."""
    with database.engine.begin() as connection:
        if number == 1:
            _add_datasets(connection)
        values = next(values for row, values in _rows(at) if row is table)
        _insert(connection, table, values | changes, number, 1)


def _add_datasets(connection: Connection) -> None:
    now = datetime.now(UTC)
    for number in range(TENANTS):
        id, tenant = f"ds_live{number}", f"t{number}" if number else "default"
        values = {"uri": "file:///live", "facts": {"num_images": 9}, "created_at": now}
        values["ingest_requested_at"] = now
        row = insert(Dataset).values(id=id, tenant=tenant, name=id, state="ready", **values)
        connection.execute(row)


def _insert(
    connection: Connection, table: type[Base], values: dict[str, Any], first: int, count: int
) -> None:
    numbers = select(literal(first).label("number")).cte("numbers", recursive=True)
    following = select(numbers.c.number + 1).where(numbers.c.number < first + count - 1)
    columns = table.__table__.columns
    row = [
        value if isinstance(value, ColumnElement) else literal(value, columns[name].type)
        for name, value in values.items()
    ]
    query = select(*row).select_from(numbers.union_all(following))
    connection.execute(insert(table).from_select(list(values), query, include_defaults=False))


def _id(prefix: str) -> ColumnElement[str]:
    return literal(f"{prefix}_") + cast(_NUMBER, String)


def _rows(at: datetime) -> Iterable[tuple[type[Base], dict[str, Any]]]:
    """Yield a row of each table, as it is when nothing more is to be done for it."""
    tenant = case(
        (_NUMBER % TENANTS == 0, "default"), else_=literal("t") + cast(_NUMBER % TENANTS, String)
    )
    owned = {"tenant": tenant, "created_at": at}
    job, dataset, checkpoint = _id("job"), _id("ds"), _id("ckpt")
    live = literal("ds_live") + cast(_NUMBER % TENANTS, String)
    file = {"uri": literal("file:///old/") + cast(_NUMBER, String), "size": 10**9}
    task = {**owned, "state": "succeeded", "finished_at": at, "dataset_id": live}
    spec = {"spec": {}, "resolved": {}, "spec_version": 1}
    yield (
        Dataset,
        {
            **owned,
            "id": dataset,
            "name": dataset,
            "uri": "file:///old",
            "state": "removed",
            "version": 1,
            "ingest_requested_at": at,
            "ingest_after": 0,
            "upload_file": {"filename": "a.zip", "sha256": "0", "fingerprint": "0"},
            "upload_size": 9,
            "upload_received": 9,
            "upload_received_at": at,
            "deleted_at": at,
        },
    )
    yield (
        DatasetVersion,
        {
            "dataset_id": dataset,
            "number": 1,
            "facts": {"num_images": 9},
            "created_at": at,
            "removed_at": at,
        },
    )
    yield (
        Job,
        {
            **owned,
            **spec,
            "id": job,
            "name": job,
            "method": "simclr",
            "status": "succeeded",
            "desired": "run",
            "priority": 0,
            "preemptible": False,
            "tags": {"study": "dar"},
            "dataset_id": live,
            "dataset_version": 1,
            "started_at": at,
            "finished_at": at,
            "attempt": 1,
            "restarts": 0,
            "infrastructure_failures": 0,
            "next_event": 2,
            "thinned_attempt": 1,
            "thinned_step": 9,
            "thinned": True,
            "logs_removed_at": at,
            "metrics_removed_at": at,
            "artifacts_removed_at": at,
            "checkpoints_thinned": True,
            "account_id": literal("usr_") + cast(_NUMBER % 1000, String),
            "experiment_id": literal("exp_") + cast(_NUMBER // 10, String),
            "variant": "dar",
            "seed": 0,
        },
    )
    yield (
        Experiment,
        {
            **owned,
            "id": _id("exp"),
            "name": "old",
            "spec": {},
            "variants": [],
            "seeds": [0],
            "baseline": "plain",
        },
    )
    yield (
        Attempt,
        {
            "owner": job,
            "number": 1,
            "kind": "train",
            "submission_id": _id("sub"),
            "token_hash": _id("hash"),
            "state": "succeeded",
            "created_at": at,
            "finished_at": at,
            "ran_seconds": 9.0,
            "settled": True,
        },
    )
    yield (
        Event,
        {
            "job_id": job,
            "seq": 1,
            "at": at,
            "type": "status",
            "message": "succeeded",
            "data": {},
            "position": _NUMBER,
            "tenant": tenant,
            "level": "info",
        },
    )
    yield (
        Metric,
        {"job_id": job, "name": "loss", "step": 9, "attempt": 1, "time": 0.0, "value": 1.0},
    )
    yield (
        Evaluation,
        {
            "id": _id("eval"),
            "job_id": job,
            "attempt": 1,
            "step": 9,
            "epoch": 1.0,
            "subject": "backbone",
            "metrics": {"knn_top1": 0.5},
            "created_at": at,
        },
    )
    yield (
        Checkpoint,
        {
            **file,
            "id": checkpoint,
            "job_id": job,
            "attempt": 1,
            "step": 9,
            "epoch": 1.0,
            "files": [],
            "metrics": {},
            "state": "registered",
            "final": True,
            "pinned": False,
            "created_at": at,
        },
    )
    yield (
        Artifact,
        {
            **file,
            "job_id": job,
            "name": "model.json",
            "attempt": 1,
            "sha256": "0",
            "content_type": "application/json",
            "created_at": at,
        },
    )
    yield JobTag, {"tenant": tenant, "key": "study", "value": "dar", "job_id": job}
    yield IdempotencyKey, {**owned, "key": _id("key"), "body_hash": "0", "answer": {}}
    yield (
        ModelRun,
        {
            **task,
            **file,
            "id": _id("run"),
            "dataset_version": 1,
            "checkpoint_id": checkpoint,
            "kind": "embedding",
            "settings": {},
            "files": [],
        },
    )
    yield (
        Preview,
        {**task, **spec, **file, "id": _id("prev"), "dataset_version": 1, "images": 8, "files": []},
    )
    yield (
        Preparation,
        {
            **task,
            "id": _id("prep"),
            "dataset_version": 1,
            "image_size": 32,
            "channels": 3,
            "image_cache": "exact",
        },
    )
    yield Search, {**task, "id": _id("search"), "embedding_id": _id("run"), "asked_at": at}
    yield (
        WebhookDelivery,
        {
            **owned,
            "id": _id("dlv"),
            "webhook_id": "hook_1",
            "type": "job",
            "message": {},
            "state": "delivered",
            "attempts": 1,
            "queued_at": at,
            "next_at": at,
            "finished_at": at,
        },
    )
    yield (
        AuditEntry,
        {
            "id": _id("audit"),
            "at": at,
            "tenant": tenant,
            "token_id": "tok_1",
            "method": "POST",
            "path": "/v1/jobs",
            "status": 201,
        },
    )
    yield (
        Usage,
        {
            "job_id": job,
            "hour": at.replace(minute=0, second=0, microsecond=0),
            "tenant": tenant,
            "account_id": literal("usr_") + cast(_NUMBER % 1000, String),
            "tags": {},
            "gpu_seconds": 9.0,
            "cpu_seconds": 9.0,
        },
    )
