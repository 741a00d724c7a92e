"""Sessions: what SQLite is told, and that concurrent read-then-write loses nothing."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import InternalError

from service.db.models import ClusterSnapshot, Lease
from service.db.session import Database, make_engine


def test_sqlite_is_set_up_for_concurrent_use(tmp_path: Path) -> None:
    engine = make_engine(f"sqlite:///{tmp_path}/new/folder/dasl.db")
    with engine.connect() as connection:
        pragmas = {
            name: connection.execute(text(f"PRAGMA {name}")).scalar()
            for name in ("journal_mode", "synchronous", "busy_timeout", "foreign_keys")
        }
    assert pragmas == {
        "journal_mode": "wal",
        "synchronous": 1,
        "busy_timeout": 30000,
        "foreign_keys": 1,
    }
    engine.dispose()


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///:memory:", "mysql://x/y", "postgresql://x"]
)
def test_other_databases_are_refused_with_a_sentence(url: str) -> None:
    with pytest.raises(ValueError, match=r"SQLite needs a file|DASL_DATABASE_URL names"):
        make_engine(url)


def test_read_then_write_increments_are_all_kept(database: Database, database_url: str) -> None:
    with database.write() as session:
        session.add(
            ClusterSnapshot(
                id=1,
                at=datetime.now(UTC),
                alive=True,
                nodes=[],
                total_cpus=0,
                total_gpus=0,
                used_cpus=0,
                used_gpus=0,
            )
        )

    def increment(_: int) -> None:
        other = Database(database_url)
        for _ in range(25):
            with other.write() as session:
                row = session.scalars(select(ClusterSnapshot).with_for_update()).one()
                row.used_cpus += 1
        other.dispose()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(increment, range(4)))
    with database.read() as session:
        assert session.get_one(ClusterSnapshot, 1).used_cpus == 100


def test_reader_neither_waits_for_a_writer_nor_sees_half_its_work(database: Database) -> None:
    lease = Lease(name="x", holder="me", expires_at=datetime.now(UTC))
    with database.write() as writer:
        writer.add(lease)
        writer.flush()
        with database.read() as reader:
            assert reader.get(Lease, "x") is None
    with database.read() as reader:
        stored = reader.get_one(Lease, "x")
        assert stored.expires_at == lease.expires_at
        assert stored.expires_at.tzinfo is UTC


def test_all_queries_of_a_read_see_one_moment(database: Database) -> None:
    names = select(Lease.name).order_by(Lease.name)
    with database.read() as session:
        assert session.scalars(names).all() == []
        with database.write() as other:
            other.add(Lease(name="a", holder="x", expires_at=datetime.now(UTC)))
        assert session.scalars(names).all() == []
    with database.read() as session:
        assert session.scalars(names).all() == ["a"]


def test_postgresql_refuses_a_write_in_a_read(postgres: Callable[[], str]) -> None:
    database = Database(postgres())
    with database.read() as session:
        session.add(Lease(name="x", holder="me", expires_at=datetime.now(UTC)))
        with pytest.raises(InternalError, match="read-only"):
            session.flush()
    database.dispose()


def test_a_connection_that_died_while_nobody_used_it_is_replaced(
    postgres: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres()
    database = Database(url)
    monkeypatch.setattr("service.db.session._TRUSTED_SECONDS", 0.0)
    with database.read() as session:
        mine = session.execute(text("SELECT pg_backend_pid()")).scalar_one()
    other = Database(url)
    with other.read() as session:
        session.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": mine})
    other.dispose()
    with database.read() as session:
        assert session.execute(text("SELECT pg_backend_pid()")).scalar_one() != mine
    database.dispose()


def test_a_look_sees_what_is_committed_at_each_query(database: Database) -> None:
    def lease(name: str) -> Lease:
        return Lease(name=name, holder="me", expires_at=datetime.now(UTC))

    with database.look() as session:
        assert session.scalars(select(Lease.name)).all() == []
        with database.write() as writing:
            writing.add(lease("first"))
        assert session.scalars(select(Lease.name)).all() == ["first"]
    # And a connection that was used for one is as good as before for transactions.
    with database.write() as session:
        session.add(lease("second"))
        session.flush()
        session.rollback()
    with database.read() as session:
        assert session.scalars(select(Lease.name)).all() == ["first"]
