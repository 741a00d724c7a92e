"""No request and no loop reads a table in proportion to its history."""

import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from service.db.models import Event
from service.db.session import Database
from service.settings import Settings
from tests.support.api_under_test import served
from tests.support.dispatcher_world import World
from tests.support.every_operation import OPERATIONS, every_resource
from tests.support.fake_executor import FakeExecutor
from tests.support.history import ROWS, add_history
from tests.support.statements import recorded_statements, rows_read

EXCEPTIONS = {
    r"^SELECT dataset_versions\..* NOT": "every five minutes: the jobs of data sets with old versions",
    r"FROM usage WHERE usage\.hour >=": "fair share: the jobs of the last hours, five half-lives",
    r"^SELECT sum\((checkpoints|artifacts|previews|model_runs)\.size\)": "every ten minutes",
    r"^SELECT (anon_1\.tenant|count\(\*\) AS count_1), sum\(\w+\.size\)": "GET /v1/storage: heavy threads",
    r"^SELECT jobs\.id, .* sum\(anon_1\.size\) AS bytes": "GET /v1/storage: heavy threads",
    r"^SELECT count\(\*\) .* FROM metrics JOIN jobs .* LIMIT": "GET /v1/storage: a million rows",
}
"""Statements that may read more, each with what bounds it."""
# A fiftieth of the tables' rows are the tenant's that asks. They are read several times, and grouped.
MOST_ROWS = ROWS * 0.3
KEPT: Any = {
    f"keep_{kind}_days": 0.05 for kind in ("jobs", "checkpoints", "artifacts", "metrics", "logs")
}
SECONDS = 400.0
"""Between two rounds, so that each does what it does every few minutes."""


@pytest.mark.slow
@pytest.mark.dialect
def test_nothing_reads_the_history(tmp_path: Path, database: Database) -> None:
    """A round of the garbage collection took half a second at 200,000 finished evaluations, each second."""
    add_history(database)
    settings = Settings(home=tmp_path, port=8123, max_artifact_bytes=10**15, **KEPT)
    executor = FakeExecutor(cpus=2)
    try:
        with (
            recorded_statements(database) as executed,
            served(settings, database) as api,
            every_resource(api) as world,
        ):
            dispatcher = World(settings, database, executor)
            dispatcher.tick(SECONDS, times=3)
            token = api.token("operator", "admin")
            for operation in OPERATIONS:
                if not operation.startswith("DELETE"):
                    world.send(operation, token)
            assert api.client.get("/metrics", headers=token).is_success
            dispatcher.tick(SECONDS, times=2)
    finally:
        executor.close()
    assert len(executed) > 1000
    with database.write() as session:  # so that the assignment of positions can be repeated
        session.execute(update(Event).where(Event.position > ROWS).values(position=None))
    read = {each: most_rows_read(database, of) for each, of in by_text(executed).items()}
    beyond = {statement: rows for statement, rows in read.items() if rows > MOST_ROWS}
    for pattern in EXCEPTIONS:
        assert any(re.search(pattern, statement) for statement in read), f"{pattern}: not executed"
    listed = re.compile("|".join(EXCEPTIONS))
    assert not {each: rows for each, rows in beyond.items() if not listed.search(each)}


def by_text(executed: list[tuple[str, Any]]) -> dict[str, list[tuple[str, Any]]]:
    """Group statements that read by their text in one line, each with some of its executions."""
    found: dict[str, list[tuple[str, Any]]] = {}
    for statement, parameters in executed:
        if re.match(r"SELECT|UPDATE|DELETE|WITH", statement):
            found.setdefault(" ".join(statement.split()), []).append((statement, parameters))
    return {text: [*each[:2], each[-1]] for text, each in found.items()}


def most_rows_read(database: Database, executions: list[tuple[str, Any]]) -> float:
    """Return the most rows that an execution reads, in a transaction that is rolled back."""
    most = 0.0
    for statement, parameters in executions:
        with database.engine.connect() as connection:
            most = max(most, rows_read(connection, statement, parameters))
            connection.rollback()
    return most
