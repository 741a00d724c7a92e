"""Database sessions: configuration, isolation, locks, and concurrent reads and writes."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url, select, text
from sqlalchemy.exc import DBAPIError, InternalError, OperationalError
from sqlalchemy.orm import Session

from service.db.models import EventCounter, Lease
from service.db.session import AWAY, Database, is_away, is_full, is_locked, is_timeout, make_engine
from tests.support.databases import Postgres

pytestmark = pytest.mark.dialect

# SQLite's numbers for the levels of `PRAGMA synchronous`.
NORMAL, FULL = 1, 2


def lease(name: str) -> Lease:
    return Lease(name=name, holder="me", expires_at=datetime.now(UTC))


def test_sqlite_engine_is_configured_for_concurrent_use(tmp_path: Path) -> None:
    engine = make_engine(f"sqlite:///{tmp_path}/new/folder/dasl.db")
    with engine.connect() as connection:
        pragmas = {
            name: connection.execute(text(f"PRAGMA {name}")).scalar()
            for name in ("journal_mode", "synchronous", "busy_timeout", "foreign_keys")
        }
    assert pragmas == {
        "journal_mode": "wal",
        "synchronous": FULL,
        "busy_timeout": 30000,
        "foreign_keys": 1,
    }
    engine.dispose()


def test_sqlite_relaxed_durability_ends_with_its_transaction(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/dasl.db")

    def synchronous_level(session: Session) -> int:
        level = session.execute(text("PRAGMA synchronous")).scalar_one()
        session.commit()
        return int(level)

    # The sessions take turns on one pooled connection.
    for _ in range(2):
        with database.writer(relaxed_durability=True) as session:
            assert synchronous_level(session) == NORMAL
        with database.writer() as session:
            assert synchronous_level(session) == FULL
        with database.write() as session:
            assert session.execute(text("PRAGMA synchronous")).scalar_one() == FULL
    database.dispose()


def test_postgresql_takes_locks_from_stalled_transaction(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder may be on a machine that died or sleeps."""
    monkeypatch.setattr("service.db.session._BUSY_SECONDS", 1)
    database = Database(postgres())
    with database.write() as session:
        session.add(lease("x"))
    held = select(Lease).where(Lease.name == "x").with_for_update()
    with database.writer() as stalled:
        stalled.scalars(held).one()

        def take() -> None:
            with database.write() as other:
                other.scalars(held).one()

        # Waits until the server ends the stalled transaction, or until the lock timeout.
        with suppress(*AWAY):
            take()
        take()
        with pytest.raises(AWAY):
            stalled.scalars(held).one()
        stalled.invalidate()
    database.dispose()


def test_postgresql_lock_wait_times_out(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(postgres())
    waiting = Database(database.engine.url.render_as_string(hide_password=False))
    with database.write() as session:
        session.add(lease("x"))
        session.flush()
        monkeypatch.setattr("service.db.session._BUSY_SECONDS", 1)
        with waiting.writer() as other, pytest.raises(AWAY, match="lock timeout"):
            other.execute(text("LOCK TABLE leases"))
    waiting.dispose()
    database.dispose()


def test_postgresql_connections_use_keepalives(postgres: Postgres) -> None:
    """A server that disappears is noticed; the URL may override the defaults."""
    url = make_url(postgres())
    for query, expected in (({}, "10"), ({"keepalives_idle": "99"}, "99")):
        database = Database(url.update_query_dict(query).render_as_string(hide_password=False))
        with database.engine.connect() as connection:
            driver = connection.connection.driver_connection
            assert isinstance(driver, psycopg.Connection)
            options = driver.info.get_parameters()
        assert options["keepalives_idle"] == expected
        assert options["tcp_user_timeout"] == "25000"
        database.dispose()


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///:memory:", "mysql://x/y", "postgresql://x"]
)
def test_make_engine_refuses_other_databases(url: str) -> None:
    with pytest.raises(ValueError, match=r"SQLite needs a file|DASL_DATABASE_URL names"):
        make_engine(url)


def test_write_sessions_lose_no_concurrent_increment(database: Database, database_url: str) -> None:
    def increment(_: int) -> None:
        other = Database(database_url)
        for _ in range(25):
            with other.write() as session:
                row = session.scalars(select(EventCounter).with_for_update()).one()
                row.last += 1
        other.dispose()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(increment, range(4)))
    with database.read() as session:
        assert session.get_one(EventCounter, 1).last == 100


def test_read_session_neither_waits_for_writer_nor_sees_uncommitted_rows(
    database: Database,
) -> None:
    added = lease("x")
    with database.write() as writer:
        writer.add(added)
        writer.flush()
        with database.read() as reader:
            assert reader.get(Lease, "x") is None
    with database.read() as reader:
        stored = reader.get_one(Lease, "x")
        assert stored.expires_at == added.expires_at
        assert stored.expires_at.tzinfo is UTC


def test_read_session_sees_one_snapshot(database: Database) -> None:
    names = select(Lease.name).order_by(Lease.name)
    with database.read() as session:
        assert session.scalars(names).all() == []
        with database.write() as other:
            other.add(lease("a"))
        assert session.scalars(names).all() == []
    with database.read() as session:
        assert session.scalars(names).all() == ["a"]


def test_postgresql_read_session_refuses_writes(postgres: Postgres) -> None:
    database = Database(postgres())
    with database.read() as session:
        session.add(lease("x"))
        with pytest.raises(InternalError, match="read-only"):
            session.flush()
    database.dispose()


def test_pool_replaces_connection_that_died_while_idle(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres()
    database = Database(url)
    monkeypatch.setattr("service.db.session._TRUSTED_SECONDS", 0.0)
    with database.read() as session:
        pid = session.execute(text("SELECT pg_backend_pid()")).scalar_one()
    other = Database(url)
    with other.read() as session:
        session.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
    other.dispose()
    with database.read() as session:
        assert session.execute(text("SELECT pg_backend_pid()")).scalar_one() != pid
    database.dispose()


def test_look_session_sees_commits_between_queries(database: Database) -> None:
    with database.autocommit() as session:
        assert session.scalars(select(Lease.name)).all() == []
        with database.write() as writing:
            writing.add(lease("first"))
        assert session.scalars(select(Lease.name)).all() == ["first"]
    # The connection is usable for transactions again afterwards.
    with database.write() as session:
        session.add(lease("second"))
        session.flush()
        session.rollback()
    with database.read() as session:
        assert session.scalars(select(Lease.name)).all() == ["first"]


def test_time_limit_of_a_reading_session_ends_with_it(database: Database) -> None:
    slow, endless = {
        "postgresql": ("SELECT pg_sleep(0.3)", "SELECT pg_sleep(60)"),
        "sqlite": (count_to(100_000), count_to(10**12)),
    }[database.engine.dialect.name]
    with database.read(statement_seconds=0.1) as session:
        with pytest.raises(OperationalError) as caught:
            session.execute(text(endless)).all()
        assert is_timeout(caught.value)
    # On the same pooled connection.
    for read in (database.read, database.write, database.autocommit):
        with read() as session:
            session.execute(text(slow)).all()


def count_to(limit: int) -> str:
    return (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT "
        f"{limit}) SELECT max(i) FROM n"
    )


class Refused(Exception):
    """An error of a driver: psycopg's with `sqlstate`, or sqlite3's with `sqlite_errorcode`."""

    def __init__(self, code: str | int | None) -> None:
        super().__init__(str(code))
        name = "sqlite_errorcode" if isinstance(code, int) else "sqlstate"
        setattr(self, name, code)


@pytest.mark.parametrize(
    ("code", "away", "locked"),
    [
        (None, True, False),  # the connection is lost
        ("08006", True, False),
        ("57P01", True, False),  # an administrator ends the server
        ("53100", True, False),  # its disk is full
        ("53300", True, False),
        ("25006", True, False),  # a standby
        ("25P03", True, False),  # the session ended, idle in a transaction
        ("55P03", False, True),
        ("40P01", False, True),
        ("57014", False, False),  # a limit of time
        ("22003", False, False),  # a number is too large
        (sqlite3.SQLITE_BUSY, True, False),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, True, False),
        (sqlite3.SQLITE_FULL, True, False),
        (sqlite3.SQLITE_IOERR_FSYNC, True, False),
        (sqlite3.SQLITE_CORRUPT, True, False),
        (sqlite3.SQLITE_READONLY, True, False),
        (sqlite3.SQLITE_ERROR, False, False),  # such as an overflow or too many variables
        (sqlite3.SQLITE_INTERRUPT, False, False),
    ],
)
def test_errors_of_one_statement_do_not_mean_that_the_database_is_away(
    code: str | int | None, away: bool, locked: bool
) -> None:
    error = OperationalError("SELECT 1", {}, Refused(code))
    assert (is_away(error), is_locked(error)) == (away, locked)


def test_index_of_the_log_that_cannot_grow_means_a_full_disk() -> None:
    error = sqlite3.OperationalError("disk I/O error")
    for code, full in ((sqlite3.SQLITE_IOERR_SHMSIZE, True), (sqlite3.SQLITE_IOERR_READ, False)):
        error.sqlite_errorcode = code
        assert is_full(OperationalError("INSERT", {}, error)) is full


def test_overflow_of_a_sum_concerns_its_statement_alone(database: Database) -> None:
    """SQLite reports it as an OperationalError, as it reports an outage."""
    huge = text("SELECT sum(n) FROM (SELECT 9223372036854775807 AS n UNION ALL SELECT 1) AS t")
    if database.engine.dialect.name == "postgresql":
        huge = text("SELECT 9223372036854775807 + 1")
    with database.read() as session, pytest.raises(DBAPIError) as caught:
        session.execute(huge).all()
    assert not is_away(caught.value)


def test_unreachable_database_is_no_timeout() -> None:
    database = Database("postgresql+psycopg://nobody@127.0.0.1:1/nothing")
    with database.read(statement_seconds=1) as session, pytest.raises(AWAY) as caught:
        session.execute(text("SELECT 1"))
    assert not is_timeout(caught.value)
    assert is_away(caught.value)
    database.dispose()
