"""A full disk is named as the cause by the API, `/readyz`, the metrics and the dispatcher's log."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import event, text

from service.artifacts import free_space
from service.db.session import Database
from service.dispatcher.isolation import Loop, Outage
from tests.support.api_under_test import Api, refused

pytestmark = pytest.mark.dialect

_FULL = "is full"


@contextmanager
def full_disk(database: Database) -> Iterator[None]:
    """Let the database refuse further rows as it does on a full disk."""
    if database.engine.dialect.name == "sqlite":

        def limit(connection: Any, _record: object) -> None:
            connection.execute("PRAGMA max_page_count = 1")  # SQLite takes its present size

        event.listen(database.engine, "connect", limit)
        database.dispose()
        yield
        event.remove(database.engine, "connect", limit)
        database.dispose()
        return
    with database.write() as session:
        session.execute(
            text(
                "CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$"
            )
        )
        session.execute(
            text("CREATE TRIGGER full_disk BEFORE INSERT ON jobs EXECUTE FUNCTION no_room()")
        )
    yield
    with database.write() as session:
        session.execute(text("DROP TRIGGER full_disk ON jobs"))
        session.execute(text("DROP FUNCTION no_room()"))


def fill(post: Callable[[], Any]) -> Any:
    """Repeat a request that stores something until it is refused; return the answer."""
    return next(answer for answer in (post() for _ in range(1000)) if answer.status_code != 201)


def storage(api: Api) -> str:
    message: str = api.client.get("/readyz").json()["checks"]["storage"]
    return message


def test_full_database_disk_is_named_and_recovers(api: Api) -> None:
    api.dataset()
    spec = {"dataset": "emoji", "tags": {"filler": "x" * 60}, "name": "n" * 200}
    assert storage(api) == "ok"
    with full_disk(api.database):
        answer = fill(lambda: api.client.post("/v1/jobs", json=spec))
        problem = refused(answer, 503, None, "storage-full")
        assert "the disk of the database" in problem["detail"]
        assert "Make room there" in problem["detail"]
        assert answer.headers["Retry-After"] == "5"
        assert api.client.get("/v1/jobs").status_code == 200, "reading goes on"
        assert _FULL in storage(api)
        assert 'dasl_up{component="storage"} 0.0' in api.client.get("/metrics").text
    assert api.client.post("/v1/jobs", json=spec).status_code == 201


def test_readyz_reports_disk_with_too_little_space(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = SimpleNamespace(f_bavail=free_space.FULL_BYTES // 4096 - 1, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda _: state)
    message = storage(api)
    assert _FULL in message
    assert "34 MB are free" in message
    assert str(api.settings.home) not in message, "the probe needs no token"
    state.f_bavail += 1
    assert storage(api) == "ok"


def test_dispatcher_names_full_disk_in_its_log(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    # An insert without rows is refused by the trigger; SQLite needs rows to run out of pages.
    insert = text("INSERT INTO jobs SELECT * FROM jobs WHERE 1 = 0")
    if database.engine.dialect.name == "sqlite":
        insert = text(
            "INSERT INTO leases SELECT hex(randomblob(20)), hex(zeroblob(100)), '2026-01-01'"
        )

    def write() -> bool:
        for _ in range(1000):
            with database.write() as session:
                session.execute(insert)
        return True

    loop = Loop(write, 1, Outage())
    with full_disk(database), caplog.at_level(logging.INFO):
        loop.run_once()
        loop.run_once()
    [record] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert _FULL in record.getMessage()
    assert "\n" not in record.getMessage()
    assert loop.failed_rounds == 0, "DaslDiskFull says it"
