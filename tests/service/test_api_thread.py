"""The API as a thread of `dasl serve`."""

from __future__ import annotations

import os
import socket
import sys
import threading
from pathlib import Path

import httpx
import pytest

from service.api_thread import ApiThread, stay_on_one_core
from service.db.migrate import upgrade
from service.db.session import Database
from service.settings import Settings


def test_a_request_before_the_thread_runs_waits_for_it(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    upgrade(settings.database_url)
    with socket.socket() as listener, socket.socket() as early:
        listener.bind(("127.0.0.1", 0))
        api = ApiThread(settings, Database(settings.database_url), listener)
        host, port = listener.getsockname()
        early.connect((host, port))  # refused, were nobody listening yet
        early.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
        api.start()
        try:
            assert early.recv(1024).startswith(b"HTTP/1.1 200")
            assert httpx.get(f"http://{host}:{port}/livez").json()["status"] == "ok"
        finally:
            api.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no affinity of threads")
def test_beside_a_database_server_the_api_alone_keeps_to_one_core(
    database_url: str, tmp_path: Path
) -> None:
    before = os.sched_getaffinity(0)
    others = set(threading.enumerate())
    settings = Settings(home=tmp_path, database_url=database_url)
    database = Database(database_url)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        api = ApiThread(settings, database, listener)
        api.start()
        try:
            host, port = listener.getsockname()
            # The token is looked for by another thread than the one that reads the request.
            unknown = {"Authorization": "Bearer unknown"}
            assert httpx.get(f"http://{host}:{port}/v1/jobs", headers=unknown).status_code == 401
            started = set(threading.enumerate()) - others
            cores = [os.sched_getaffinity(thread.native_id or 0) for thread in started]
        finally:
            api.stop()
            database.dispose()
    assert api in started
    assert len(started) > 1
    if database_url.startswith("sqlite"):
        assert all(its == before for its in cores)
    else:
        assert all(its == cores[0] and len(its) == 1 for its in cores)
    # What this process starts, as Ray, has all cores.
    assert os.sched_getaffinity(0) == before


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no affinity of threads")
def test_who_may_not_choose_a_core_uses_all(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def forbidden(_thread: int, _cores: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", forbidden)
    with caplog.at_level("INFO", logger="service.api_thread"):
        stay_on_one_core()
    assert "uses all cores" in caplog.text
