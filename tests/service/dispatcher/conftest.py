"""A dispatcher on a database, with a clock that only moves when a test says so."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, tzinfo
from pathlib import Path

import pytest

from service import lifecycle
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
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]  # a plain one
            return world.now().astimezone(tz)

    # The life of a job goes by the wall clock; here it goes by the test's.
    for module in (lifecycle, runs):
        monkeypatch.setattr(module, "datetime", WorldTime)
    yield world
    executor.close()
