"""The API as a process of its own, and `dasl db admin-token`."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from service.cli.app import app
from service.server import tuning
from service.server.tuning import stay_on_one_core

pytestmark = pytest.mark.timeout(600)

LISTENS = re.compile(r"The API listens on (\S+), port ([0-9]+)")
# Far longer than needed, even on a busy machine.
PATIENCE_SECONDS = 240


@contextmanager
def api_process(database_url: str, **settings: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `python -m service.server` on a free loopback port; yield the process and its URL."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("DASL_", "RAY_"))}
    process = subprocess.Popen(
        [sys.executable, "-m", "service.server"],
        env=environment | {"DASL_DATABASE_URL": database_url, "DASL_PORT": "0"} | settings,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    watchdog = threading.Timer(PATIENCE_SECONDS, process.kill)
    watchdog.start()
    try:
        for line in process.stderr:
            if match := LISTENS.search(line):
                yield process, f"http://{match[1]}:{match[2]}"
                return
        raise AssertionError(f"it ended with exit code {process.wait()}")
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate()


def test_api_process_serves_without_dispatcher_and_exits_on_sigterm(database_url: str) -> None:
    with api_process(database_url) as (process, url):
        token = _admin_token(database_url, "ops")
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}) as http:
            assert http.get("/livez").status_code == 200
            ready = http.get("/readyz")
            assert ready.status_code == 503
            assert ready.json()["checks"]["database"] == "ok"
            created = http.post("/v1/tokens", json={"name": "laptop", "scopes": ["submit"]})
            assert created.status_code == 201
            listed = {
                each["name"]: each["scopes"] for each in http.get("/v1/tokens").json()["data"]
            }
        assert listed == {"ops": ["admin"], "laptop": ["submit"]}
        if sys.platform == "linux":
            # Including the threads that serve requests.
            threads = [int(path.name) for path in Path(f"/proc/{process.pid}/task").iterdir()]
            cores = {frozenset(os.sched_getaffinity(thread)) for thread in threads}
            assert len(threads) > 2
            assert [len(core_set) for core_set in cores] == [1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="thread affinity exists only on Linux")
@pytest.mark.parametrize("forbidden", ["sched_getaffinity", "sched_setaffinity"])
def test_stay_on_one_core_falls_back_to_all_cores(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, forbidden: str
) -> None:
    def forbid(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    before = os.sched_getaffinity(0)
    with monkeypatch.context() as patched, caplog.at_level("INFO", logger="service.server.tuning"):
        patched.setattr(os, forbidden, forbid)
        stay_on_one_core()
    assert "uses all cores" in caplog.text
    assert os.sched_getaffinity(0) == before


@pytest.mark.skipif(sys.platform != "linux", reason="thread affinity exists only on Linux")
def test_apis_of_a_machine_use_different_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []
    first = 10_000 * os.getpid()  # cores that no other test uses
    monkeypatch.setattr(tuning, "_reservations", [])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {first, first + 1, first + 2})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: used.extend(cores))
    for _ in range(4):
        stay_on_one_core()
    assert sorted(used[:3]) == [first, first + 1, first + 2]
    assert used[3] in used[:3]
    tuning._reservations.pop().close()  # the process of the third has ended
    stay_on_one_core()
    assert used[4] == used[2]


def test_admin_token_command_creates_a_new_token_each_time(database_url: str) -> None:
    assert _admin_token(database_url, "ops") != _admin_token(database_url, "ops")


def test_admin_token_command_refuses_database_without_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DASL_DATABASE_URL", f"sqlite:///{tmp_path}/empty.db")
    result = CliRunner().invoke(app, ["db", "admin-token", "ops"])
    assert result.exit_code == 1
    assert "dasl db upgrade" in result.stderr


@pytest.mark.parametrize("name", ["", "two\nlines", "x" * 201])
def test_admin_token_command_refuses_invalid_names(name: str) -> None:
    assert CliRunner().invoke(app, ["db", "admin-token", name]).exit_code == 2


def _admin_token(database_url: str, name: str) -> str:
    result = CliRunner().invoke(
        app, ["db", "admin-token", name], env={"DASL_DATABASE_URL": database_url}
    )
    assert result.exit_code == 0, result.stderr
    return result.stdout.strip()
