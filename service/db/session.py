"""Engine and sessions, the same for SQLite and PostgreSQL."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import InternalError, InvalidatePoolError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import ConnectionPoolEntry

if TYPE_CHECKING:
    import psycopg  # Not loaded when SQLite is used.

# What a database raises that does not answer, or takes no writes now, as a standby does: it is asked
# again, and nothing else is wrong.
AWAY = (OperationalError, InternalError, PoolTimeout)
_READ_ONLY, _SINGLE, _RELAXED = "dasl_read_only", "dasl_single", "dasl_relaxed"
# For a lock, and for who holds one without doing anything.
_BUSY_SECONDS = 30
# How a server is noticed that went away without a word: asked after 10 s of silence, given up after 25.
_POSTGRESQL_LIVENESS = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
_SYNCED_AS = "dasl_synced_as"
# A connection used this recently is assumed to work.
_USED_AT, _TRUSTED_SECONDS = "dasl_used_at", 1.0


def in_a_line(error: Exception) -> str:
    """The database's own message, without the statement and the link that SQLAlchemy adds."""
    return str(getattr(error, "orig", None) or error).strip().splitlines()[0]


class Database:
    """A connection pool and the two kinds of transaction that use it.

    Sessions connect at their first statement and are short: no network call inside one.
    """

    def __init__(self, url: str) -> None:
        self.engine = make_engine(url)
        # One snapshot for all statements, as SQLite's transactions have it.
        reader = self.engine.execution_options(
            **{_READ_ONLY: True}
            if self.engine.dialect.name == "sqlite"
            else {"postgresql_readonly": True, "isolation_level": "REPEATABLE READ"}
        )
        # Autocommit saves two round trips to the server.
        single = self.engine.execution_options(
            **{_SINGLE: True}
            if self.engine.dialect.name == "sqlite"
            else {"isolation_level": "AUTOCOMMIT"}
        )
        relaxed = self.engine.execution_options(**{_RELAXED: True})
        self._single = sessionmaker(single, expire_on_commit=False)
        self._write = sessionmaker(self.engine, expire_on_commit=False)
        self._write_relaxed = sessionmaker(relaxed, expire_on_commit=False)
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

    @contextmanager
    def autocommit(self) -> Iterator[Session]:
        """An autocommit session for single reads: each sees what is committed at that moment."""
        with self._single() as session:
            yield session

    def writer(self, *, relaxed_durability: bool = False) -> Session:
        """A session as in `write` that its user commits and closes.

        Args:
            relaxed_durability: SQLite need not wait for the disk at its end: a power cut may take what was
                written, until another transaction is committed that is not relaxed.
        """
        return self._write_relaxed() if relaxed_durability else self._write()

    def reader(self) -> Session:
        """A session as in `read` that its user closes."""
        return self._read()

    def dispose(self) -> None:
        """Close all pooled connections."""
        self.engine.dispose()


def make_engine(url: str) -> Engine:
    """An engine for `sqlite:///...` or `postgresql+psycopg://...`.

    Raises:
        ValueError: another database or driver.
    """
    parsed = make_url(url)
    # As many connections as the API has threads (40 for requests, and the probes') and some more, so
    # that none waits for one. They are kept: else all beyond a few would be opened anew at each peak,
    # which takes a server longer than what they are for. What a statement was given is nobody's
    # business who reads its error in a log.
    options: dict[str, Any] = {
        "pool_size": 50,
        "max_overflow": 0,
        "pool_use_lifo": True,
        "hide_parameters": True,
    }
    if parsed.drivername in ("sqlite", "sqlite+pysqlite"):
        if parsed.database in (None, "", ":memory:"):
            raise ValueError("SQLite needs a file: every connection of a pool must see the same")
        Path(str(parsed.database)).parent.mkdir(parents=True, exist_ok=True)
        # A request moves between the threads of a pool, never running in two at once.
        engine = create_engine(parsed, connect_args={"check_same_thread": False}, **options)
        event.listen(engine, "connect", _configure_sqlite)
        turn = _Turn()
        event.listen(engine, "begin", turn.begin)
        event.listen(engine, "checkin", turn.end)
        return engine
    if parsed.drivername == "postgresql+psycopg":
        liveness = {k: v for k, v in _POSTGRESQL_LIVENESS.items() if k not in parsed.query}
        engine = create_engine(parsed, connect_args=liveness, **options)
        event.listen(engine, "connect", _configure_postgresql)
        _ping_when_idle(engine)
        return engine
    raise ValueError(
        f"DASL_DATABASE_URL names {parsed.drivername!r}; use sqlite:///PATH or "
        "postgresql+psycopg://USER:PASSWORD@HOST/DATABASE"
    )


def _ping_when_idle(engine: Engine) -> None:
    """Replace connections that a server closed, without a test before every transaction."""

    def note(_connection: object, record: ConnectionPoolEntry) -> None:
        record.info[_USED_AT] = time.monotonic()

    def ping(connection: DBAPIConnection, record: ConnectionPoolEntry, _proxy: object) -> None:
        used_at = record.info.get(_USED_AT)
        if used_at is None or time.monotonic() - used_at < _TRUSTED_SECONDS:
            return
        try:
            engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise InvalidatePoolError from error

    event.listen(engine, "checkin", note)
    event.listen(engine, "checkout", ping)


def _configure_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    # Driver autocommit: transactions begin where `_begin_sqlite` says, nowhere else.
    connection.isolation_level = None
    cursor = connection.cursor()
    # The timeout first: switching to WAL itself may meet a lock.
    cursor.execute(f"PRAGMA busy_timeout={_BUSY_SECONDS * 1000}")
    cursor.execute("PRAGMA journal_mode=WAL")
    # What was accepted outlives the power: NORMAL would sync a commit only some time after it.
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _configure_postgresql(connection: psycopg.Connection[Any], _record: object) -> None:
    # A process that stands still within a transaction, or whose machine died there, keeps its locks
    # no longer than this; nobody waits for a lock longer than this either.
    connection.autocommit = True
    for name in ("idle_in_transaction_session_timeout", "lock_timeout"):
        connection.execute("SELECT set_config(%s, %s, false)", (name, f"{_BUSY_SECONDS}s"))
    connection.autocommit = False


class _Turn:
    """Begins SQLite's transactions, one that writes at a time.

    SQLite knows no queue: who finds the database locked looks again after pauses of up to 0.1 s, and
    under load most of the time goes by in such pauses. So writers of this process wait here for each
    other, and only for those of another process as SQLite does.
    """

    def __init__(self) -> None:
        self._free = threading.Lock()
        self._owner: object = None

    def begin(self, connection: Connection) -> None:
        options = connection.get_execution_options()
        if options.get(_SINGLE, False):
            return
        # A deferred transaction that reads first cannot be upgraded once another process has
        # written: it would lose updates or fail with "database is locked". Writers queue up front.
        if options.get(_READ_ONLY, False):
            connection.exec_driver_sql("BEGIN")
            return
        owner = connection.connection._connection_record
        # Where even that takes too long, SQLite says itself that it is locked.
        if self._owner is not owner and self._free.acquire(timeout=_BUSY_SECONDS):
            self._owner = owner
        wanted = "NORMAL" if options.get(_RELAXED, False) else "FULL"
        if owner.info.get(_SYNCED_AS, "FULL") != wanted:
            connection.exec_driver_sql(f"PRAGMA synchronous={wanted}")
            owner.info[_SYNCED_AS] = wanted
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    def end(self, _connection: object, owner: object) -> None:
        if self._owner is owner:
            self._owner = None
            self._free.release()
