"""`dasl serve` without Ray: when it ends because a part of it is stuck, and what trainings may do before."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from service.embedded import dispatcher_thread, notices, serve
from service.server import thread, tuning
from service.settings import Settings
from tests.support.api_under_test import Api, snapshot


class Part:
    """Stands in for the API, the dispatcher and Ray; it runs until it is stopped."""

    running = sees_nodes = True
    reason: str | None = None

    def __init__(self, *_arguments: object, **_options: object) -> None:
        self.stopped: list[dict[str, Any]] = []

    def start(self) -> None: ...

    def join(self) -> None: ...

    def is_alive(self) -> bool:
        return True

    def stop(self, **options: Any) -> None:
        self.stopped.append(options)

    def stuck(self) -> str | None:
        return self.reason


@pytest.mark.parametrize(("stuck", "seconds"), [("api", 45.0), ("dispatcher", 0.0)])
def test_trainings_may_save_unless_the_dispatcher_is_stuck(
    tmp_path: Path,
    migrated_sqlite: Path,
    monkeypatch: pytest.MonkeyPatch,
    stuck: str,
    seconds: float,
) -> None:
    """The dispatcher asks them to, and a stuck API still answers workers, whose threads are their own."""
    parts = {name: Part() for name in ("api", "dispatcher", "ray")}
    parts[stuck].reason = f"The {stuck} hangs"
    monkeypatch.setattr(thread, "ApiThread", lambda *_: parts["api"])
    monkeypatch.setattr(dispatcher_thread, "DispatcherThread", lambda *_, **__: parts["dispatcher"])
    monkeypatch.setattr(serve, "LocalRay", lambda *_: parts["ray"])
    monkeypatch.setattr(tuning, "freeze_garbage_collection", lambda: None)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(migrated_sqlite, home / "dasl.db")
    settings = Settings(home=home, port=0, shutdown_seconds=45)
    with pytest.raises(RuntimeError, match=f"The {stuck} hangs. The service ends; start it again"):
        serve.serve(settings, threading.Event())
    assert parts["dispatcher"].stopped == [{"save_seconds": seconds}]
    assert parts["ray"].stopped


def test_jobs_that_the_next_start_continues_are_told(api: Api) -> None:
    assert notices.describe_unfinished(api.database) is None
    assert notices.describe_cluster(api.database) is None
    api.dataset()
    jobs = [api.submit()["id"] for _ in range(4)]
    api.start(jobs[0])
    api.client.post(f"/v1/jobs/{jobs[1]}/cancel")
    api.client.post(f"/v1/jobs/{jobs[2]}/pause")
    assert notices.describe_unfinished(api.database) == "2 jobs continue at the next start."
    snapshot(api, cpus=4, gpus=1)
    assert notices.describe_cluster(api.database) == "Jobs can use 4 CPU cores and 1 GPU."
