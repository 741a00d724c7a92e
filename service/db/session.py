"""Database engine and sessions, with the same behavior on SQLite and PostgreSQL."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.engine.interfaces import DBAPIConnection, ExceptionContext
from sqlalchemy.exc import InternalError, InvalidatePoolError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import ConnectionPoolEntry

if TYPE_CHECKING:
    import psycopg  # not loaded when SQLite is used

# Retryable errors. `is_away` tells whether the database is away or only one statement failed.
AWAY = (OperationalError, InternalError, PoolTimeout)
_READ_ONLY, _SINGLE, _RELAXED = "dasl_read_only", "dasl_single", "dasl_relaxed"
# How long to wait for a lock, and how long an idle transaction may hold one.
_BUSY_SECONDS = 30
# Detects a server that vanished: probe after 10 s without traffic, give up after 25 s.
_POSTGRESQL_LIVENESS = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
_POSTGRESQL_CANCELED = "57014"
_POSTGRESQL_LOCKED = {"55P03", "40P01"}  # lock_not_available, deadlock_detected
# Classes of SQLSTATE: no connection, no resources, an operator's or system's intervention; a standby; a lost session.
_POSTGRESQL_AWAY = ("08", "53", "57P", "58", "25006", "25P03")
_SQLITE_AWAY = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_READONLY,
}
_SQLITE_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_SYNC_MODE = "dasl_sync_mode"
# Time limit of a reading session, and the number of SQLite's steps (some 0.1 ms) between two checks of it.
_STATEMENT_SECONDS, _STEPS_PER_CHECK = "dasl_statement_seconds", 10_000
# In addition to SQLITE_FULL: SQLite cannot extend the index of its write-ahead log.
_SQLITE_FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE}
_POSTGRESQL_FULL = {"53100"}  # disk_full
# Longer than the pauses between writes of the dispatcher and the workers.
_FULL_SECONDS = 60.0
# A connection used this recently is assumed to work.
_USED_AT, _TRUSTED_SECONDS = "dasl_used_at", 1.0


def first_line(error: Exception) -> str:
    """Return the first line of the database's message, without SQLAlchemy's statement and link."""
    return str(getattr(error, "orig", None) or error).strip().splitlines()[0]


def is_damaged(error: Exception) -> bool:
    """Whether SQLite cannot read its file, because something else overwrote or cut it."""
    return getattr(getattr(error, "orig", None), "sqlite_errorcode", None) in _SQLITE_DAMAGED


def is_timeout(error: Exception) -> bool:
    """Whether a statement was interrupted because it took too long."""
    orig = getattr(error, "orig", None)
    return (
        getattr(orig, "sqlstate", None) == _POSTGRESQL_CANCELED
        or getattr(orig, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT
    )


def is_away(error: Exception) -> bool:
    """Whether an error of `AWAY` concerns all statements: no connection, or a database that refuses all writes.

    Otherwise it concerns the one statement: a lock of another session, a deadlock, a limit of time, an overflow.
    """
    orig = getattr(error, "orig", None)
    if (sqlstate := getattr(orig, "sqlstate", None)) is not None:
        return str(sqlstate).startswith(_POSTGRESQL_AWAY)
    code = getattr(orig, "sqlite_errorcode", None)
    # An extended code has the primary one in its lowest byte. Without a code the driver lost the connection.
    return code is None or code & 0xFF in _SQLITE_AWAY


def is_locked(error: Exception) -> bool:
    """Whether a statement failed because another session holds a row that it needs."""
    return getattr(getattr(error, "orig", None), "sqlstate", None) in _POSTGRESQL_LOCKED


def limit_lock_waits(session: Session, seconds: float) -> None:
    """From now on, wait shorter for the locks that a transaction needs; SQLite locks no single rows."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text(f"SET LOCAL lock_timeout = {int(seconds * 1000)}"))


def is_full(error: Exception) -> bool:
    """Whether the database refused a write because its disk is full."""
    cause = getattr(error, "orig", None) or error
    if isinstance(cause, sqlite3.Error):
        return getattr(cause, "sqlite_errorcode", None) in _SQLITE_FULL
    return getattr(cause, "sqlstate", None) in _POSTGRESQL_FULL


class Database:
    """A connection pool with writing, reading and autocommit sessions.

    A session connects at its first statement and must be short: make no network calls inside one. An UPDATE or DELETE
    does not change rows that the session has loaded; `populate_existing` reads them again.
    """

    def __init__(self, url: str) -> None:
        self.engine = make_engine(url)
        self._full_at: float | None = None
        event.listen(self.engine, "handle_error", self._note_full)
        event.listen(self.engine, "commit", self._note_commit)
        # A single snapshot for all statements, like SQLite's transactions.
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
        self._write, self._write_relaxed = (
            # Statements do not change loaded rows: finding those takes longer than most statements.
            sessionmaker(
                engine, expire_on_commit=False, execution_options={"synchronize_session": False}
            )
            for engine in (self.engine, relaxed)
        )
        self._read = sessionmaker(reader, expire_on_commit=False)
        event.listen(self._read, "after_begin", _limit_statements)

    def write(self) -> AbstractContextManager[Session]:
        """Open a transaction that commits at the end of the block and rolls back if it raises."""
        return self._write.begin()

    def read(self, *, statement_seconds: float | None = None) -> Session:
        """Open a read-only snapshot until the end of the block; PostgreSQL refuses writes in it.

        Args:
            statement_seconds: interrupt statements that take longer, with an error that `is_timeout`
                recognizes. On SQLite the limit applies to all statements of a transaction together.
        """
        return self._read(info={_STATEMENT_SECONDS: statement_seconds})

    def autocommit(self) -> Session:
        """Open an autocommit session for single reads of the data committed at that moment."""
        return self._single()

    def writer(self, *, relaxed_durability: bool = False) -> Session:
        """Return a session like `write`'s; the caller commits and closes it.

        Args:
            relaxed_durability: whether SQLite commits without waiting for the disk. A power failure may undo the
                transaction until a later, durable one commits.
        """
        return self._write_relaxed() if relaxed_durability else self._write()

    @property
    def is_full(self) -> bool:
        """Whether the last write failed within the last minute because the database's disk is full."""
        return self._full_at is not None and time.monotonic() - self._full_at < _FULL_SECONDS

    def _note_full(self, context: ExceptionContext) -> None:
        error = context.original_exception
        if isinstance(error, Exception) and is_full(error):
            self._full_at = time.monotonic()

    def _note_commit(self, _: Connection) -> None:
        self._full_at = None

    def dispose(self) -> None:
        """Close all pooled connections."""
        self.engine.dispose()


def make_engine(url: str) -> Engine:
    """Create an engine for `sqlite:///...` or `postgresql+psycopg://...`.

    Raises:
        ValueError: the URL names another database or driver.
    """
    parsed = make_url(url)
    # More connections than the API's threads (`service.api.threads`) and probes together, so that no thread
    # waits for one. They stay open, because opening takes longer than the queries. Hide parameters in logged
    # errors, as they may be private.
    options: dict[str, Any] = {
        "pool_size": 60,
        "max_overflow": 0,
        "pool_use_lifo": True,
        "hide_parameters": True,
    }
    if parsed.drivername in ("sqlite", "sqlite+pysqlite"):
        if parsed.database in (None, "", ":memory:"):
            raise ValueError("SQLite needs a file: every connection of a pool must see the same")
        Path(str(parsed.database)).parent.mkdir(parents=True, exist_ok=True)
        # A request moves between the threads of a pool, but never runs in two at the same time.
        engine = create_engine(parsed, connect_args={"check_same_thread": False}, **options)
        event.listen(engine, "connect", _configure_sqlite)
        queue = _WriterQueue()
        event.listen(engine, "begin", queue.begin)
        event.listen(engine, "checkin", queue.release)
        event.listen(engine, "checkin", _remove_limit)
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
    """Replace connections that the server closed, without a ping before every transaction."""

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
    # Enable the driver's autocommit: only `_WriterQueue.begin` begins transactions.
    connection.isolation_level = None
    cursor = connection.cursor()
    # Set the timeout first: switching to WAL may wait for a lock.
    cursor.execute(f"PRAGMA busy_timeout={_BUSY_SECONDS * 1000}")
    cursor.execute("PRAGMA journal_mode=WAL")
    # A committed transaction must survive a power failure; NORMAL would sync it later.
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _configure_postgresql(connection: psycopg.Connection[Any], _record: object) -> None:
    # Limit how long a stalled or dead process holds its locks, and how long others wait for a lock.
    connection.autocommit = True
    for name in ("idle_in_transaction_session_timeout", "lock_timeout"):
        connection.execute("SELECT set_config(%s, %s, false)", (name, f"{_BUSY_SECONDS}s"))
    connection.autocommit = False


def _limit_statements(session: Session, _transaction: object, connection: Connection) -> None:
    """Limit the statements of the transaction that has begun."""
    seconds = session.info.get(_STATEMENT_SECONDS)
    if seconds is None:
        return
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = {max(1, int(seconds * 1000))}")
        return
    deadline = time.monotonic() + seconds
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    driver.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS_PER_CHECK)


def _remove_limit(connection: sqlite3.Connection | None, _record: object) -> None:
    if connection is not None:  # `None`: closed after an error
        connection.set_progress_handler(None, 0)


class _WriterQueue:
    """Begins SQLite's transactions, with one writer of this process at a time.

    SQLite has no queue of writers: on a lock it retries after pauses of up to 0.1 s, which dominate under load. The
    writers of this process therefore wait for each other in this class; writers of other processes use SQLite's
    retries.
    """

    def __init__(self) -> None:
        self._free = threading.Lock()
        self._owner: object = None

    def begin(self, connection: Connection) -> None:
        options = connection.get_execution_options()
        if options.get(_SINGLE, False):
            return
        # Writers begin IMMEDIATE: a deferred transaction that has read cannot write once another process has
        # written, and would fail with "database is locked".
        if options.get(_READ_ONLY, False):
            connection.exec_driver_sql("BEGIN")
            return
        owner = connection.connection._connection_record
        # After this timeout SQLite reports the lock.
        if self._owner is not owner and self._free.acquire(timeout=_BUSY_SECONDS):
            self._owner = owner
        mode = "NORMAL" if options.get(_RELAXED, False) else "FULL"
        if owner.info.get(_SYNC_MODE, "FULL") != mode:
            connection.exec_driver_sql(f"PRAGMA synchronous={mode}")
            owner.info[_SYNC_MODE] = mode
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    def release(self, _connection: object, owner: object) -> None:
        if self._owner is owner:
            self._owner = None
            self._free.release()
