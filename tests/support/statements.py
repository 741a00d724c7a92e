"""The SQL that is executed meanwhile, and how SQLite executes it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Session

from service.db.session import Database


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
