"""Fixtures: a dispatcher on a database, with a clock that only the test moves."""

from collections.abc import Iterator
from datetime import datetime, tzinfo
from pathlib import Path

import pytest

from service import lifecycle
from service.db import leases
from service.db.session import Database
from service.runs import repository as runs
from service.settings import Settings
from tests.support.dispatcher_world import World
from tests.support.fake_executor import FakeExecutor


@pytest.fixture
def world(tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    executor = FakeExecutor(cpus=2)
    world = World(Settings(home=tmp_path, port=8123), database, executor)

    class WorldTime(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]  # a plain datetime
            return world.now().astimezone(tz)

    # These modules use the wall clock; the tests replace it by their own.
    for module in (lifecycle, runs):
        monkeypatch.setattr(module, "datetime", WorldTime)
    monkeypatch.setattr(leases, "current_time", lambda session: world.now())
    yield world
    executor.close()
