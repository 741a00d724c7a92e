"""`/livez` and `/readyz`, also while the database, dispatcher or Ray is unavailable."""

import socket
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from service.db.models import ClusterSnapshot, Lease
from service.log_records import REQUESTS
from service.observability import observer
from service.scheduling import repository as scheduling
from service.scheduling.dispatcher_report import DispatcherReport, RayReport
from service.server.app import create_app
from service.settings import Settings
from tests.support.api_under_test import Api, refused, snapshot
from tests.support.database_outage import database_outage
from tests.support.migrations import NEXT, next_version


def lease(api: Api, seconds: float) -> None:
    with api.database.write() as session:
        until = datetime.now(UTC) + timedelta(seconds=seconds)
        session.merge(Lease(name="dispatcher", holder="me", expires_at=until))


def checks(api: Api) -> dict[str, str]:
    answer = api.client.get("/readyz")
    messages: dict[str, str] = answer.json()["checks"]
    assert set(messages) == {"database", "dispatcher", "ray", "storage"}
    if set(messages.values()) == {"ok"}:
        assert (answer.status_code, answer.json()["ready"]) == (200, True)
    else:
        problem = refused(answer, 503, None, "not-ready")
        assert problem["ready"] is False
        assert all(text in problem["detail"] for text in messages.values() if text != "ok")
    return messages


def serving(home: Path, url: str) -> TestClient:
    return TestClient(create_app(Settings(home=home, database_url=url)))


def test_livez_reports_status_and_version(api: Api) -> None:
    live = api.client.get("/livez").json()
    assert live == {"status": "ok", "version": api.client.app.version}  # type: ignore[attr-defined]


def test_answer_that_the_service_is_not_ready_is_no_error_of_it(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger=REQUESTS)
    refused(api.client.get("/readyz"), 503, None, "not-ready")
    [record] = [each for each in caplog.records if "GET /readyz" in each.getMessage()]
    assert record.levelname == "DEBUG"


def test_readyz_names_failing_components(api: Api) -> None:
    first = checks(api)
    assert first["database"] == "ok"
    assert first["dispatcher"] == "no dispatcher holds the lease"
    assert first["ray"] == "not seen yet"
    snapshot(api, cpus=2)
    lease(api, 30)
    assert set(checks(api).values()) == {"ok"}
    lease(api, -1)
    assert [name for name, message in checks(api).items() if message != "ok"] == ["dispatcher"]
    lease(api, 30)
    for alive, age, message in ((False, 0, "does not answer"), (True, 31, "last seen")):
        with api.database.write() as session:
            at = datetime.now(UTC) - timedelta(seconds=age)
            saved = scheduling.snapshot(session)
            assert saved is not None
            saved.at, saved.alive, saved.nodes = at, alive, []
        assert message in checks(api)["ray"]


@pytest.mark.parametrize("state", ["idle", "starting"])
def test_ray_that_is_started_for_work_only_is_ready(
    api: Api, state: Literal["idle", "starting"]
) -> None:
    lease(api, 30)

    def rest(problem: str | None) -> Any:
        report = RayReport(state=state, problem=problem)
        now = datetime.now(UTC)
        dispatcher = DispatcherReport(started_at=now, ray=report).model_dump(mode="json")
        with api.database.write() as session:
            saved = ClusterSnapshot(
                at=now, alive=False, nodes=[], dispatcher=dispatcher, **dict.fromkeys(TOTALS, 0)
            )
            scheduling.save_snapshot(session, saved)
        return api.client.get("/readyz")

    assert rest(None).json()["checks"]["ray"] == state
    assert 'dasl_up{component="ray"} 1.0' in api.client.get("/metrics").text
    assert api.client.get("/v1/cluster").json()["rest"] == state
    api.dataset()
    api.submit()

    def reason() -> str:
        [job] = api.client.get("/v1/cluster").json()["queue"]
        waits: str = job["reason"]
        return waits

    assert reason() == "Ray is starting, which takes about ten seconds"
    problem = refused(rest("Ray cannot be started"), 503, None, "not-ready")
    assert problem["checks"]["ray"] == reason() == "Ray cannot be started"


TOTALS = ("total_cpus", "total_gpus", "used_cpus", "used_gpus")


def test_readyz_refuses_outdated_tables(api: Api, tmp_path: Path) -> None:
    with next_version(tmp_path):
        outdated = checks(api)["database"]
        assert outdated.endswith(f", and this needs {NEXT}; run `dasl db upgrade`")
    with api.database.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    # A newer service has migrated the tables; this one continues until it is replaced.
    assert checks(api)["database"] == "ok"


@pytest.mark.dialect
def test_probes_follow_database_outage_and_recovery(api: Api, database_url: str) -> None:
    assert checks(api)["database"] == "ok"
    with database_outage(api.database, database_url):
        messages = checks(api)
        assert messages["database"] == "cannot be read (OperationalError)"
        assert "unknown" in messages["dispatcher"]
        assert "unknown" in messages["ray"]
        assert api.client.get("/livez").status_code == 200
        refused(api.client.get("/v1/jobs"), 503, None, "database-unavailable")
        scraped = api.client.get("/metrics")
        assert scraped.status_code == 200
        assert 'dasl_up{component="database"} 0.0' in scraped.text
        assert "dasl_http_request_duration_seconds_count" in scraped.text
        assert "dasl_jobs" not in scraped.text
    assert checks(api)["database"] == "ok"
    assert "dasl_jobs" in api.client.get("/metrics").text


def test_readyz_reports_database_without_tables(tmp_path: Path) -> None:
    with serving(tmp_path, f"sqlite:///{tmp_path / 'empty.db'}") as client:
        problem = refused(client.get("/readyz"), 503, None, "not-ready")
        assert problem["checks"]["database"] == "cannot be read (OperationalError)"


def test_probes_time_out_on_hanging_database_with_bounded_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observer, "_PROBE_SECONDS", 0.05)
    monkeypatch.setattr(observer, "_SCRAPE_SECONDS", 0.05)
    # It accepts connections and never answers.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql+psycopg://me:secret@127.0.0.1:{silent.getsockname()[1]}/x"
        with serving(tmp_path, url) as client:
            before = threading.active_count()
            for _ in range(5):
                problem = refused(client.get("/readyz"), 503, None, "not-ready")
                assert problem["checks"]["database"] == "does not answer within 0.05 s"
                scraped = client.get("/metrics")
                assert scraped.status_code == 200
                assert 'dasl_up{component="database"} 0.0' in scraped.text
            assert client.get("/livez").status_code == 200
            assert threading.active_count() <= before + 2
