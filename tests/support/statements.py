"""The SQL that is executed meanwhile, and how the databases execute it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session

from service.db.session import Database

_INSTRUCTIONS = 1000


@contextmanager
def recorded_statements(database: Database) -> Iterator[list[tuple[str, Any]]]:
    """Collect the statements that are executed meanwhile, with their parameters."""
    executed: list[tuple[str, Any]] = []
    listener = ("before_cursor_execute", lambda *arguments: executed.append(arguments[2:4]))
    event.listen(database.engine, *listener)
    try:
        yield executed
    finally:
        event.remove(database.engine, *listener)


def plan_of(session: Session, statement: str, parameters: Any) -> list[str]:
    """Return the steps of SQLite's plan for a statement."""
    explained = f"EXPLAIN QUERY PLAN {statement}"
    return [row[-1] for row in session.connection().exec_driver_sql(explained, parameters)]


def rows_read(connection: Connection, statement: str, parameters: Any) -> float:
    """Execute a statement again; return about how many rows it reads of the table of which it reads most.

    PostgreSQL says it. SQLite's instructions are counted instead: reading a row in a scan takes three and more.
    """
    if connection.dialect.name == "sqlite":
        return _instructions(connection, statement, parameters) / 3
    explained = f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}"
    (plan,) = connection.exec_driver_sql(explained, parameters).scalar_one()
    removed = ("Rows Removed by Filter", "Rows Removed by Index Recheck")
    counts = [
        node["Actual Loops"] * (node["Actual Rows"] + sum(node.get(key, 0) for key in removed))
        for node in _nodes(plan["Plan"])
    ]
    return float(max(counts))


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)


def _instructions(connection: Connection, statement: str, parameters: Any) -> int:
    counted = 0

    def count() -> int:
        nonlocal counted
        counted += _INSTRUCTIONS
        return 0  # go on

    raw: Any = connection.connection.driver_connection
    raw.set_progress_handler(count, _INSTRUCTIONS)
    try:
        result = connection.exec_driver_sql(statement, parameters)
        if result.returns_rows:
            result.fetchall()
    finally:
        raw.set_progress_handler(None, 0)
    return counted
