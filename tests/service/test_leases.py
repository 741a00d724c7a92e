"""Leases expire by one clock, whatever the clocks and settings of their holders."""

from datetime import UTC, datetime, timedelta

import pytest

from service.db import leases
from service.db.leases import MAX_LEASE, release_lease, take_lease, time_left
from service.db.models import Lease
from service.db.session import Database
from service.settings import Settings

pytestmark = pytest.mark.dialect

SHORT, LONG = timedelta(seconds=10), timedelta(seconds=600)


def taken(database: Database, holder: str, length: timedelta) -> bool:
    with database.write() as session:
        return take_lease(session, "x", holder, length)


def test_live_lease_is_not_taken_by_a_holder_with_a_shorter_one(database: Database) -> None:
    assert taken(database, "first", LONG)
    assert not taken(database, "second", SHORT)
    assert taken(database, "first", LONG), "it can be renewed"
    with database.write() as session:
        release_lease(session, "x", "first")
    assert taken(database, "second", SHORT)
    assert not taken(database, "first", LONG)


def test_lease_is_released_by_its_holder_only(database: Database) -> None:
    assert taken(database, "second", LONG)
    with database.write() as session:
        release_lease(session, "x", "first")  # it stops after another one took over
    assert not taken(database, "third", SHORT)


def test_lease_from_before_the_clock_was_set_back_is_expired(database: Database) -> None:
    with database.write() as session:
        until = datetime.now(UTC) + MAX_LEASE + timedelta(minutes=1)
        session.add(Lease(name="x", holder="first", expires_at=until))
    assert taken(database, "second", SHORT)


def test_lease_expires_by_the_clock_of_postgresql(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of the second machine is an hour fast."""

    class Fast(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]  # a plain datetime
            return datetime.now(UTC) + timedelta(hours=1)

    assert taken(database, "first", SHORT)
    monkeypatch.setattr(leases, "datetime", Fast)
    is_postgresql = database.engine.dialect.name == "postgresql"
    assert taken(database, "second", SHORT) != is_postgresql
    with database.read() as session:
        left = time_left(session, "x")
        assert left is not None
        assert timedelta() < left <= SHORT
        assert time_left(session, "never taken") is None


def test_longest_lease_is_that_of_the_setting() -> None:
    assert Settings(lease_seconds=MAX_LEASE.total_seconds()).lease_seconds == 600
    with pytest.raises(ValueError, match="less than or equal to 600"):
        Settings(lease_seconds=601)
