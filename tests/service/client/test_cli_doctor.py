"""`dasl doctor` with and without a server, and every kind of failure."""

import errno
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import httpx
import pytest
from fsspec.implementations.local import LocalFileSystem
from packaging.specifiers import SpecifierSet
from typer.testing import CliRunner

from dasl_core.installed import installed_version
from service.cli.app import app
from service.client.config import Connection
from service.db import migrate
from service.db.models import ClusterSnapshot, Lease
from service.doctor import Finding, installation, local_storage, ray, server, stores
from service.doctor.stores import check_artifacts
from service.scheduling import repository as scheduling
from service.scheduling.dispatcher_report import DispatcherReport, RayReport
from tests.support.api_server import Service, running_service
from tests.support.command_line import run
from tests.support.databases import Postgres
from tests.support.migrations import next_version
from tests.support.scripted_server import answer_json, scripted

NO_GPU = """print('{"cuda": null, "names": []}')"""


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a fresh home, ignore the free disk space, and skip the slow import of torch."""
    monkeypatch.setenv("DASL_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(installation, "_GPUS", NO_GPU)
    monkeypatch.setattr(local_storage, "_WARN_FREE_BYTES", 0)
    monkeypatch.setattr(local_storage, "_FAIL_FREE_BYTES", 0)


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    with running_service(tmp_path / "home") as running:
        monkeypatch.setenv("DASL_URL", running.url)
        monkeypatch.setenv("DASL_TOKEN", running.token)
        yield running


def report() -> tuple[int, dict[str, Finding]]:
    """Run `dasl doctor`; return the exit code and the findings by name."""
    result = CliRunner().invoke(app, ["doctor", "--json"])
    answer = json.loads(result.stdout)
    assert answer["ok"] == (result.exit_code == 0)
    findings = [
        Finding(check["name"], check["state"], check["said"], check["todo"])
        for check in answer["checks"]
    ]
    for finding in findings:
        assert finding.state in ("skip", "ok") or finding.remedy, f"{finding} has no remedy"
    return result.exit_code, {finding.name: finding for finding in findings}


def dispatch(service: Service, rest: RayReport | None = None) -> None:
    """Write what a running dispatcher keeps in the database."""
    now = datetime.now(UTC)
    report = DispatcherReport(started_at=now, ray=rest).model_dump(mode="json")
    with service.database.write() as session:
        lease = Lease(name="dispatcher", holder="me", expires_at=now + timedelta(minutes=5))
        session.merge(lease)
        seen = ClusterSnapshot(
            at=now,
            alive=rest is None,
            nodes=[{"id": "n", "address": "a"} | dict.fromkeys(RESOURCES, 1)],
            dispatcher=report,
            **dict.fromkeys(RESOURCES, 1),
        )
        scheduling.save_snapshot(session, seen)


RESOURCES = ("total_cpus", "total_gpus", "used_cpus", "used_gpus")


def test_all_checks_pass(service: Service) -> None:
    dispatch(service)
    code, checks = report()
    assert {finding.state for finding in checks.values()} == {"ok"}, checks
    assert code == 0
    assert checks["torch"].message == installed_version("torch")
    assert "has the tables of this version" in checks["database"].message
    assert "test (tok_" in checks["token"].message
    assert checks["token"].message.endswith("with scope admin")
    assert (
        checks["cluster"].message
        == "1 node, 0 of 1 CPUs allocated to jobs, 0 of 1 GPUs allocated to jobs"
    )
    dispatch(service, RayReport(state="idle"))
    code, checks = report()
    assert code == 0
    assert checks["server's ray"].message == "idle"
    assert checks["cluster"].message == "Ray is idle; it runs while there is work"
    assert "idle: Ray starts with the next job" in CliRunner().invoke(app, ["cluster"]).stdout
    dispatch(service)
    assert not list((service.settings.home).glob("artifacts/.written*"))
    result = run("doctor")
    assert all(line.startswith("ok ") for line in result.stdout.splitlines())


def test_missing_server_does_not_hide_other_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DASL_URL", "http://127.0.0.1:9")
    code, checks = report()
    assert code == 1
    assert [finding.name for finding in checks.values() if finding.state == "fail"] == ["server"]
    assert "dasl serve" in checks["server"].remedy
    assert {"python", "torch", "GPUs", "home", "disk", "database", "artifacts"} <= checks.keys()
    assert "does not exist yet" in checks["database"].message
    result = run("doctor", code=1)
    assert "1 of 12 checks failed" in result.stdout


def test_server_without_dispatcher_version_or_token(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, checks = report()
    assert code == 1
    failed = [finding.name for finding in checks.values() if finding.state == "fail"]
    assert failed == ["server's dispatcher", "server's ray", "cluster"]
    dispatch(service)
    service.app.version = "9.9.0"
    code, checks = report()
    assert (code, checks["server"].state) == (0, "warn")
    assert "9.9.0" in checks["server"].remedy
    for token in ("", "dasl_S3cret"):
        monkeypatch.setenv("DASL_TOKEN", token)
        code, checks = report()
        assert (code, checks["token"].state) == (1, "fail")
        assert "S3cret" not in str(checks["token"]), "a token is not shown"
        assert checks["server's ray"].state == "ok"


def test_other_service_at_the_address_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as other:
        thread = Thread(target=other.serve_forever)
        thread.start()
        monkeypatch.setenv("DASL_URL", f"http://127.0.0.1:{other.server_port}")
        code, checks = report()
        other.shutdown()
        thread.join()
    assert (code, checks["server"].state) == (1, "fail")
    assert "is not a DASL server" in checks["server"].message
    monkeypatch.setenv("DASL_URL", "nonsense")
    assert report()[1]["server"].state == "fail"


@pytest.mark.parametrize(("ahead", "state"), [(0, "ok"), (-4, "ok"), (60, "warn"), (-60, "warn")])
def test_clock_skew(ahead: int, state: str) -> None:
    now = time.time()
    date = format_datetime(datetime.fromtimestamp(now + ahead, UTC), usegmt=True)
    finding = server._clock(httpx.Response(200, headers={"Date": date}), now - 0.1, now)
    assert finding.state == state
    assert server._clock(httpx.Response(200), now, now).state == "skip"


def test_outdated_tables_fail(service: Service, tmp_path: Path) -> None:
    (tmp_path / "next").mkdir()
    with next_version(tmp_path / "next"):
        database = report()[1]["database"]
    assert (database.state, database.remedy) == ("fail", "dasl db upgrade")
    assert f"version {migrate.head()}" in database.message


def test_full_store_needs_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(LocalFileSystem, "pipe_file", full)
    finding = check_artifacts(f"file://{tmp_path}")
    assert (finding.state, finding.remedy) == ("fail", "Make room there")


def test_unusable_local_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def states() -> dict[str, str]:
        return {finding.name: finding.state for finding in local_storage.run_checks()}

    (tmp_path / "file").touch()
    monkeypatch.setenv("DASL_HOME", str(tmp_path / "file" / "home"))
    assert states()["home"] == "fail"
    monkeypatch.setenv("DASL_HOME", str(tmp_path))
    monkeypatch.setenv("DASL_DATABASE_URL", f"sqlite:///{tmp_path}")
    assert states()["database"] == "fail"
    monkeypatch.setenv("DASL_ARTIFACTS_URI", "nowhere://x")
    assert states()["artifacts"] == "fail"
    monkeypatch.setattr(local_storage, "_WARN_FREE_BYTES", 1e18)
    assert states()["disk"] == "warn"
    monkeypatch.setattr(local_storage, "_FAIL_FREE_BYTES", 1e18)
    assert states()["disk"] == "fail"
    monkeypatch.setenv("DASL_PORT", "many")
    assert states() == {"settings": "fail"}


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_database_without_tables_is_filled_by_the_first_start(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "postgresql":
        postgres: Postgres = request.getfixturevalue("postgres")
        url = postgres.empty()
        request.addfinalizer(lambda: postgres.drop(url))
    else:
        (tmp_path / "empty.db").touch()
        url = f"sqlite:///{tmp_path}/empty.db"
    monkeypatch.setenv("DASL_DATABASE_URL", url)
    [database] = [each for each in local_storage.run_checks() if each.name == "database"]
    assert (database.state, database.remedy) == ("ok", "")
    assert database.message.endswith("has no tables yet; `dasl serve` creates them")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8000", "`dasl serve` prints a token"),
        ("https://dasl.example.org", "Ask your administrator for a new token"),
    ],
)
def test_refused_token_says_where_another_one_comes_from(url: str, expected: str) -> None:
    def refuse(_: httpx.Request) -> httpx.Response:
        return httpx.Response(401, json={"detail": "The token was revoked"})

    with httpx.Client(base_url=url, transport=httpx.MockTransport(refuse)) as http:
        for token in (None, "dasl_revoked"):
            finding = server._token(http, Connection(url, token))
            assert finding.state == "fail"
            assert finding.remedy.endswith(expected)


def test_unreachable_database_fails_without_showing_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stores, "_CONNECT_SECONDS", "2")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for port in (9, silent.getsockname()[1]):
            url = f"postgresql+psycopg://me:hunter2@127.0.0.1:{port}/x"
            monkeypatch.setenv("DASL_DATABASE_URL", url)
            [database] = [
                finding for finding in local_storage.run_checks() if finding.name == "database"
            ]
            assert database.state == "fail"
            assert "hunter2" not in str(database)


def test_gpu_check(monkeypatch: pytest.MonkeyPatch) -> None:
    assert installation._gpus().message == "none; training uses CPUs"
    monkeypatch.setattr(installation, "_GPUS", """print('{"cuda": "12.8", "names": ["H200"]}')""")
    assert installation._gpus() == Finding("GPUs", "ok", "H200 (CUDA 12.8)")
    monkeypatch.setattr(installation, "_GPUS", "raise OSError('libcuda is broken')")
    assert installation._gpus().state == "fail"
    assert "libcuda is broken" in installation._gpus().message


def test_package_versions_are_compared_with_requirements() -> None:
    assert installation._package("typer", SpecifierSet(">=9999")).state == "fail"
    assert installation._package("typer", SpecifierSet(">=0.1")).state == "ok"
    assert installation._package("no-such-package", None).state == "warn"
    assert str(installation._requirements()["torch"]).startswith(">=")


def test_doctor_imports_neither_torch_nor_ray() -> None:
    script = f"""
import sys
from typer.testing import CliRunner
from service.cli.app import app
from service.doctor import installation
installation._GPUS = {NO_GPU!r}
CliRunner().invoke(app, ["doctor"])
print({{"torch", "ray", "timm", "torchvision"}} & sys.modules.keys())
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.slow
def test_gpu_check_with_real_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert installation._gpus().state in ("ok", "warn")


@pytest.mark.parametrize(("version", "state"), [("2.60.0", "ok"), ("2.61.0", "warn"), ("", "fail")])
def test_external_ray_is_compared_with_the_tested_version(
    monkeypatch: pytest.MonkeyPatch, version: str, state: str
) -> None:
    answer = answer_json({"ray_version": version} if version else {})
    with scripted(lambda _: answer) as head:
        monkeypatch.setenv("DASL_RAY_ADDRESS", head.url)
        (finding,) = ray.run_checks()
    assert (finding.name, finding.state) == ("Ray's version", state)
    assert (finding.remedy == "") == (state == "ok")
    monkeypatch.delenv("DASL_RAY_ADDRESS")
    assert list(ray.run_checks()) == []
