"""Fill a database as if a hundred thousand jobs had run."""

import itertools
import json
import random
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy import insert, text, update
from sqlalchemy.orm import Session
from sqlalchemy.sql.schema import ScalarElementColumnDefault

from dasl_core.spec import DatasetFacts, JobSpec, resolve, versions
from service import ids
from service.db.models import (
    Base,
    Dataset,
    DatasetVersion,
    Event,
    EventCounter,
    Job,
    JobTag,
    Metric,
    Run,
)
from service.db.session import Database
from service.tokens import service as tokens
from service.tokens.schemas import Quotas

TENANT, DATASET = "default", "pictures"
FACTS = {"num_images": 50_000, "num_classes": 10, "median_size": 64}
METHODS = ("simclr", "byol", "dino", "swav", "hcl")
TEAMS = ("vision", "audio", "robots", "maps", "search")
# One in this many jobs has the rare tag and the rare status.
RARE = 2000
_JOBS_AT_ONCE = 1000
_EVENTS = ("Job queued", "Attempt 1 is starting", "Attempt 1 is running", "Job succeeded")
# Enough points for an index of some depth; more are added while the benchmark runs.
_JOBS_WITH_POINTS, _STEPS_WITH_POINTS = 100, 1000


def spec(number: int) -> dict[str, Any]:
    """Return the spec of the job with this number."""
    tags = {"team": TEAMS[number % len(TEAMS)], "run": str(number // RARE)}
    if number % RARE == 0:
        tags["keep"] = "yes"
    return {
        "name": f"run {number}",
        "dataset": DATASET,
        "method": {"name": METHODS[number % len(METHODS)]},
        "dar": {"weight": 0.1},
        "train": {"epochs": 100, "batch_size": 256},
        "resources": {"workers": 1, "cpus_per_worker": 1},
        "tags": tags,
    }


def write_history(
    database: Database, images: Path, jobs: int, queued: int
) -> tuple[str, list[str]]:
    """Fill an empty database with finished and waiting jobs.

    Returns:
        A token with the scope `submit`, and the ids of some jobs, oldest first.
    """
    now = datetime.now(UTC)
    images.mkdir(parents=True)
    dataset_id = ids.new_id("ds")
    with database.write() as session:
        token, token_text = tokens.create(
            session, tenant=TENANT, name="benchmark", scopes=["submit"], quotas=Quotas()
        )
        session.add(
            Dataset(
                id=dataset_id,
                tenant=TENANT,
                name=DATASET,
                uri=str(images),
                state="ready",
                facts=FACTS,
                index_uri=f"{images}/index.safetensors",
                created_at=now,
                ingest_requested_at=now,
            )
        )
        session.flush()
        session.add(
            DatasetVersion(
                dataset_id=dataset_id,
                number=1,
                index_uri=f"{images}/index.safetensors",
                facts=FACTS,
                created_at=now,
            )
        )
    resolved = [_resolved(number) for number in range(len(METHODS))]
    chance = random.Random(0)
    job_ids: list[str] = []
    position = 0
    for first in range(0, jobs + queued, _JOBS_AT_ONCE):
        numbers = range(first, min(first + _JOBS_AT_ONCE, jobs + queued))
        rows = []
        for number in numbers:
            status = "queued" if number >= jobs else _end(number)
            # In a month, and the last one ended: nothing is in the future.
            began = now - timedelta(days=30) * (1 - number / (jobs + queued)) - timedelta(hours=1)
            document = spec(number)
            rows.append(
                {
                    "id": ids.new_id("job"),
                    "tenant": TENANT,
                    "name": document["name"],
                    "method": document["method"]["name"],
                    "status": status,
                    "desired": "run",
                    "spec": document,
                    "resolved": resolved[number % len(METHODS)],
                    "spec_version": versions.current(),
                    "priority": chance.choice((0, 0, 0, 10, 20)),
                    "tags": document["tags"],
                    "dataset_id": dataset_id,
                    "created_at": now if status == "queued" else began,
                    "queued_at": now if status == "queued" else began,
                    "started_at": None if status == "queued" else began,
                    "finished_at": None if status == "queued" else began + timedelta(hours=1),
                    "attempt": 0 if status == "queued" else 1,
                    "restarts": 0,
                    "thinned": status != "queued",
                    "next_event": 2 if status == "queued" else len(_EVENTS) + 1,
                    "token_id": token.id,
                    "account_id": token.id,
                }
            )
        job_ids += [str(row["id"]) for row in rows[:: _JOBS_AT_ONCE // 10]]
        with database.write() as session:
            _add(session, Job, rows)
            _add(session, JobTag, _tags(rows))
            _add(session, Run, _attempts(rows))
            events = list(_events(rows, position))
            _add(session, Event, events)
        position += len(events)
    with database.write() as session:
        session.execute(update(EventCounter).values(last=position))
        for job_id in job_ids[:_JOBS_WITH_POINTS]:
            _add(session, Metric, _points(job_id, chance))
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if connection.dialect.name == "postgresql":
            # As autovacuum does on a database that grows gradually.
            connection.execute(text("VACUUM ANALYZE"))
    return token_text, job_ids


def _end(number: int) -> str:
    if number % RARE == RARE // 2:
        return "cancelled"
    return "failed" if number % 20 == 0 else "succeeded"


def _resolved(number: int) -> dict[str, Any]:
    facts = DatasetFacts.model_validate(FACTS)
    return resolve(JobSpec.model_validate(spec(number)), facts).model_dump(mode="json")


def _add(session: Session, table: type[Base], rows: Iterable[dict[str, Any]]) -> None:
    # COPY knows no defaults of columns.
    defaults = {
        column.key: column.default.arg
        for column in Base.metadata.tables[table.__tablename__].columns
        if isinstance(column.default, ScalarElementColumnDefault)
    }
    values = [defaults | row for row in rows]
    if not values:
        return
    if session.get_bind().dialect.name == "sqlite":
        session.execute(insert(table), values)
        return
    connection = session.connection().connection.driver_connection
    assert isinstance(connection, psycopg.Connection)
    columns = sql.SQL(", ").join(map(sql.Identifier, values[0]))
    name = sql.Identifier(table.__tablename__)
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(name, columns)
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for row in values:
            copy.write_row([json.dumps(x) if isinstance(x, dict) else x for x in row.values()])


def _tags(jobs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for job in jobs:
        for key, value in job["tags"].items():
            yield {"tenant": TENANT, "key": key, "value": value, "job_id": job["id"]}


def _attempts(jobs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for job in jobs:
        if job["attempt"]:
            yield {
                "kind": "train",
                "owner": job["id"],
                "number": 1,
                "submission_id": f"{job['id']}-1-00000000",
                "state": job["status"],
                "token_hash": f"{job['id']:0>64}",
                "heartbeat_at": job["finished_at"],
                "progressed_at": job["finished_at"],
                "created_at": job["started_at"],
                "finished_at": job["finished_at"],
                "settled": True,
            }


def _events(jobs: list[dict[str, Any]], after: int) -> Iterator[dict[str, Any]]:
    """Yield the events of jobs with the next positions, as a service has assigned them."""
    position = itertools.count(after + 1)
    for job in jobs:
        for seq, message in enumerate(_EVENTS[: job["next_event"] - 1], start=1):
            yield {
                "job_id": job["id"],
                "seq": seq,
                "at": job["created_at"],
                "type": "status",
                "message": message,
                "data": {"attempt": 1},
                "position": next(position),
                "tenant": TENANT,
                "level": "info",
            }


def _points(job_id: str, chance: random.Random) -> Iterator[dict[str, Any]]:
    for name in ("loss", "lr", "dar", "images_per_second", "embedding_std"):
        for step in range(_STEPS_WITH_POINTS):
            yield {
                "job_id": job_id,
                "name": name,
                "step": step,
                "attempt": 1,
                "time": float(step),
                "value": chance.random(),
            }
