"""`dasl serve` without Ray: when it ends because a part of it is stuck, and what trainings may do before."""

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from service.embedded import dispatcher_thread, notices, on_demand, serve
from service.scheduling.nodes import Cluster, Node
from service.server import thread, tuning
from service.settings import Settings
from tests.support.api_under_test import Api


class Part:
    """Stands in for the API, the dispatcher and Ray; it runs until it is stopped."""

    reason: str | None = None
    in_charge = is_running = True
    first_cluster: Cluster | None = None
    visited = lost_work = threading.Event()

    def __init__(self, *_arguments: object, **_options: object) -> None:
        self.stopped: list[dict[str, Any]] = []

    def start(self) -> None: ...

    def close(self) -> None:
        self.stop()

    def join(self) -> None: ...

    def is_alive(self) -> bool:
        return True

    def stop(self, **options: Any) -> None:
        self.stopped.append(options)

    def stuck(self) -> str | None:
        return self.reason


def run_service(
    folder: Path,
    migrated_sqlite: Path,
    monkeypatch: pytest.MonkeyPatch,
    parts: dict[str, Part],
    stop: threading.Event,
) -> None:
    monkeypatch.setattr(thread, "ApiThread", lambda *_: parts["api"])
    monkeypatch.setattr(dispatcher_thread, "DispatcherThread", lambda *_, **__: parts["dispatcher"])
    monkeypatch.setattr(on_demand, "RayOnDemand", lambda *_: parts["ray"])
    monkeypatch.setattr(tuning, "freeze_garbage_collection", lambda: None)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    home = folder / "home"
    home.mkdir()
    shutil.copy(migrated_sqlite, home / "dasl.db")
    serve.serve(Settings(home=home, port=0, shutdown_seconds=45), stop)


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
    with pytest.raises(RuntimeError, match=f"The {stuck} hangs. The service ends; start it again"):
        run_service(tmp_path, migrated_sqlite, monkeypatch, parts, threading.Event())
    assert parts["dispatcher"].stopped == [{"save_seconds": seconds}]
    assert parts["ray"].stopped


def test_jobs_that_the_next_start_continues_are_told(api: Api) -> None:
    assert notices.describe_unfinished(api.database) is None
    api.dataset()
    jobs = [api.submit()["id"] for _ in range(4)]
    api.start(jobs[0])
    api.client.post(f"/v1/jobs/{jobs[1]}/cancel")
    api.client.post(f"/v1/jobs/{jobs[2]}/pause")
    assert notices.describe_unfinished(api.database) == "2 jobs continue at the next start."


def test_cores_and_gpus_are_told_once_ray_runs(
    tmp_path: Path,
    migrated_sqlite: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The service is ready before that."""
    told = iter([None, None, Cluster((Node("n", "127.0.0.1", 4, 0, 0, 0),))])
    stop = threading.Event()

    class Ray(Part):
        @property
        def first_cluster(self) -> Cluster | None:  # type: ignore[override]
            cluster = next(told, None)
            if cluster is not None:
                stop.set()
            return cluster

    parts = {"api": Part(), "dispatcher": Part(), "ray": Ray()}
    run_service(tmp_path, migrated_sqlite, monkeypatch, parts, stop)
    printed = capsys.readouterr().out.splitlines()
    assert printed[-3:-1] == [
        "Ready. Ctrl-C stops everything.",
        "Ray runs. Jobs can use 4 CPU cores and no GPU.",
    ]
