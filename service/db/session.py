"""Engine and sessions, the same for SQLite and PostgreSQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.orm import Session, sessionmaker

_READ_ONLY = "dasl_read_only"


class Database:
    """A connection pool and the two kinds of transaction that use it.

    Sessions connect at their first statement and are short: no network call inside one.
    """

    def __init__(self, url: str) -> None:
        self.engine = make_engine(url)
        reader = self.engine.execution_options(**{_READ_ONLY: True, "postgresql_readonly": True})
        self._write = sessionmaker(self.engine, expire_on_commit=False)
        self._read = sessionmaker(reader, expire_on_commit=False)

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A transaction that commits when the block ends well and rolls back when it raises."""
        with self._write.begin() as session:
            yield session

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A snapshot to read from; PostgreSQL refuses writes in it."""
        with self._read() as session:
            yield session

    def dispose(self) -> None:
        """Close every pooled connection."""
        self.engine.dispose()


def make_engine(url: str) -> Engine:
    """An engine for `sqlite:///...` or `postgresql+psycopg://...`.

    Raises:
        ValueError: another database or driver.
    """
    parsed = make_url(url)
    # As many connections as the API has threads, so that a thread never waits for a connection
    # that a request waiting for a thread holds. What a statement was given is nobody's business
    # who reads its error in a log.
    options: dict[str, Any] = {"pool_size": 10, "max_overflow": 40, "hide_parameters": True}
    if parsed.drivername in ("sqlite", "sqlite+pysqlite"):
        if parsed.database in (None, "", ":memory:"):
            raise ValueError("SQLite needs a file: every connection of a pool must see the same")
        Path(str(parsed.database)).parent.mkdir(parents=True, exist_ok=True)
        # A request moves between the threads of a pool, never running in two at once.
        engine = create_engine(parsed, connect_args={"check_same_thread": False}, **options)
        event.listen(engine, "connect", _configure_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    if parsed.drivername == "postgresql+psycopg":
        return create_engine(parsed, pool_pre_ping=True, **options)
    raise ValueError(
        f"DASL_DATABASE_URL names {parsed.drivername!r}; use sqlite:///PATH or "
        "postgresql+psycopg://USER:PASSWORD@HOST/DATABASE"
    )


def _configure_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    # Driver autocommit: transactions begin where `_begin_sqlite` says, nowhere else.
    connection.isolation_level = None
    cursor = connection.cursor()
    # The timeout first: switching to WAL itself may meet a lock.
    cursor.execute("PRAGMA busy_timeout=30000")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # A deferred transaction that reads first cannot be upgraded once another process has
    # written: it would lose updates or fail with "database is locked". Writers queue up front.
    read_only = connection.get_execution_options().get(_READ_ONLY, False)
    connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")
