"""Which uses of a token are recorded."""

from datetime import UTC, datetime, timedelta

import pytest

from service.api import last_use
from service.api.last_use import LastUse
from service.db.session import Database

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def test_use_is_due_once_a_minute_per_token() -> None:
    uses = LastUse()
    assert uses.is_due("a", None, NOW)
    assert not uses.is_due("a", None, NOW + 59 * SECOND)
    assert uses.is_due("b", None, NOW + 59 * SECOND)
    assert uses.is_due("a", None, NOW + 60 * SECOND)
    assert not uses.is_due("c", NOW - 59 * SECOND, NOW)
    assert uses.is_due("c", NOW - 60 * SECOND, NOW)


def test_use_is_due_after_the_clock_was_set_back() -> None:
    uses = LastUse()
    assert uses.is_due("a", None, NOW)
    assert uses.is_due("a", None, NOW - timedelta(hours=1))


def test_unreachable_database_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    database = Database("postgresql+psycopg://dasl:hunter2@127.0.0.1:1/dasl")
    last_use.record(database, "tok_x")
    assert "The last use of tok_x is not recorded" in caplog.text
    assert "hunter2" not in caplog.text
    database.dispose()
