"""What the dispatcher reports of itself, and that it ends when it is stuck."""

import os
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest

from service import ids
from service.artifacts.storage import Storage
from service.checkpoints import repository as checkpoints
from service.dispatcher import isolation, loop
from service.dispatcher.executor import ExecutorUnavailable
from service.dispatcher.isolation import run_isolated
from service.scheduling import repository as scheduling
from service.scheduling.dispatcher_report import DispatcherReport
from service.watchdog import STUCK_EXIT_CODE, Watchdog
from tests.support.dispatcher_world import World, running
from tests.support.polling import until


def report(world: World) -> DispatcherReport:
    with world.database.read() as session:
        found = DispatcherReport.from_snapshot(scheduling.snapshot(session))
    assert found is not None
    return found


def test_report_has_store_sizes_and_failed_rounds(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = world.add_job()
    world.tick()
    checkpoint = world.add_checkpoint(job_id, 1, 5)
    with world.database.write() as session:
        checkpoints.by_id(session, checkpoint).size = 3_000_000_500
    world.tick(601)
    world.tick()
    store = report(world).store
    assert store is not None
    assert (store.problem, store.checkpoint_bytes, store.artifact_bytes) == (None, 3_000_000_500, 0)
    assert store.free_bytes
    assert report(world).failed_rounds == dict.fromkeys(world.dispatcher.background, 0)
    assert report(world).started_at == world.began

    def refuse(_: Storage) -> None:
        raise ValueError("the store cannot be written: read-only file system")

    monkeypatch.setattr(Storage, "check_writable", refuse)
    world.tick(61)
    world.tick()
    store = report(world).store
    assert store is not None
    assert store.problem == "the store cannot be written: read-only file system"


def test_restart_is_an_event_of_jobs_that_were_running(world: World) -> None:
    before = world.start_job(cpus_per_worker=1)
    assert world.events(before, "service-restarted") == []
    world.ahead += timedelta(seconds=60)
    world.restart("second")
    world.tick(60)
    world.tick()
    after = world.add_job()
    world.tick()
    assert world.events(before, "service-restarted") == [
        "The dispatcher was restarted while attempt 1 was running"
    ]
    assert world.events(after, "service-restarted") == []


def test_dispatcher_is_stuck_only_if_a_round_does_not_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked, go_on = threading.Event(), threading.Event()
    calls = 0

    def cluster() -> None:
        # The first round fails like one without Ray, the second never returns.
        nonlocal calls
        calls += 1
        if calls > 1:
            blocked.set()
            go_on.wait()
        raise ExecutorUnavailable("Ray does not answer")

    monkeypatch.setattr(world.executor, "cluster", cluster)
    assert world.dispatcher.stuck() is None, "it does not run yet"
    with running(world):
        until(lambda: calls == 1 or None, "the first round")
        world.ahead += timedelta(seconds=5)
        assert blocked.wait(60)
        assert world.dispatcher.stuck() is None
        queue = world.dispatcher._loops["queue"]
        assert queue.progressed_at is not None
        queue.progressed_at -= world.settings.stuck_seconds
        reason = world.dispatcher.stuck()
        assert reason is not None
        assert reason.startswith("The loop 'queue' of the dispatcher made no progress for 90")
        go_on.set()
        until(lambda: world.dispatcher.stuck() is None or None, "its recovery")
    assert world.dispatcher.stuck() is None, "it has stopped"


@pytest.mark.slow
def test_store_that_hangs_does_not_make_the_dispatcher_stuck(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart would not unblock it, and `dasl serve` would end all trainings."""
    job = world.start_job()
    hanging, go_on = threading.Event(), threading.Event()

    def hangs(*_: object) -> None:
        hanging.set()
        assert go_on.wait(60)
        raise OSError("stale file handle")

    for call in ("check_writable", "folders", "remove"):
        monkeypatch.setattr(Storage, call, hangs)
    world.end_job(job, "succeeded")
    world.ahead += timedelta(seconds=61)  # The check of the store is due.
    with running(world):
        assert hanging.wait(60)
        until(lambda: world.dispatcher._store.hangs or None, "the check of the store")
        loop = world.dispatcher.background["logs"]
        assert loop.progressed_at is not None
        loop.progressed_at -= 2 * world.settings.stuck_seconds
        found = world.dispatcher.stuck()
        go_on.set()
        assert found is None


def test_suspended_process_is_not_stuck(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as by Ctrl-Z or `docker pause`: its loops continue with it."""
    now = time.monotonic()
    blocked, go_on = threading.Event(), threading.Event()

    def cluster() -> None:
        blocked.set()
        go_on.wait()
        raise ExecutorUnavailable("Ray does not answer")

    monkeypatch.setattr(world.executor, "cluster", cluster)
    limit = world.settings.stuck_seconds

    def stuck_at(seconds: float) -> str | None:
        with monkeypatch.context() as patch:
            patch.setattr(time, "monotonic", lambda: now + seconds)
            return world.dispatcher.stuck()

    with running(world):
        assert blocked.wait(60)
        assert stuck_at(10) is None
        assert stuck_at(2 * limit) is None, "it was suspended"
        for part in (0.4, 0.8):
            assert stuck_at((2 + part) * limit) is None
        assert "made no progress for" in str(stuck_at((3 + 0.1) * limit))
        go_on.set()


def test_dispatcher_stops_and_gives_up_its_lease_while_the_store_hangs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, go_on = threading.Event(), threading.Event()

    def hang(_: Storage) -> None:
        hangs.set()
        go_on.wait()

    monkeypatch.setattr(Storage, "check_writable", hang)
    monkeypatch.setattr(loop, "_CHECK_PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(loop, "_CHECK_INTERVAL_SECONDS", 0.1)
    world.restart()
    try:
        with running(world):
            assert hangs.wait(60)
    finally:
        go_on.set()


@pytest.mark.slow
def test_dispatcher_starts_and_is_watched_while_the_store_hangs(tmp_path: Path) -> None:
    """As an NFS mount does."""
    program = (
        "import sys, threading\n"
        "from service.artifacts.storage import Storage\n"
        "Storage.check_writable = lambda storage: threading.Event().wait()\n"
        "from service.dispatcher.__main__ import main\n"
        "sys.exit(main())\n"
    )
    alive = tmp_path / "alive"
    environment = {**os.environ, "DASL_HOME": str(tmp_path / "home")}
    process = subprocess.Popen(
        [sys.executable, "-c", program, "--alive-file", str(alive)], env=environment
    )
    try:
        until(lambda: alive.exists() or None, "the watchdog")
    finally:
        process.kill()
        process.wait(60)


def test_store_that_is_not_writable_at_the_start_is_told(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: Storage) -> None:
        raise ValueError("DASL_ARTIFACTS_URI: it cannot be written. Mount it")

    monkeypatch.setattr(Storage, "check_writable", refuse)
    world.tick()
    [message] = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert message.endswith("DASL_ARTIFACTS_URI: it cannot be written. Mount it")


def test_watchdog_ends_stuck_process_with_reason_and_stacks() -> None:
    program = (
        "import logging, threading; logging.basicConfig()\n"
        "from service.watchdog import Watchdog\n"
        "entered = threading.Event()\n"
        "stuck = lambda: 'The loop hangs' if entered.is_set() else None\n"
        "Watchdog(stuck, None, every=0.01).start()\n"
        "def blocked_round(): entered.set(); threading.Event().wait()\n"
        "blocked_round()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == STUCK_EXIT_CODE
    assert "The loop hangs. This process ends, to be started again" in done.stderr
    assert "in blocked_round" in done.stderr


def test_watchdog_touches_file_while_alive(tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    watchdog = Watchdog(lambda: None, alive, every=0.01)
    watchdog.start()
    until(lambda: alive.exists() or None, "the file")
    os.utime(alive, (0, 0))
    until(lambda: alive.stat().st_mtime > 0 or None, "a touch")
    watchdog.stop()
    watchdog.join(60)
    assert not watchdog.is_alive()


def test_rounds_that_fail_are_counted() -> None:
    stop = threading.Event()

    def fail() -> bool:
        stop.set()
        raise RuntimeError("a defect")

    loop = isolation.Loop(fail, 0.0, isolation.Outage())
    loop.run(stop)
    assert loop.failed_rounds == 1
    assert loop.progressed_at is None


def test_failed_step_is_logged_in_plain_words(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: object) -> None:
        raise ValueError("no such thing")

    run_isolated(broken, ids.new_id("job"), "remove this job")
    (record,) = caplog.records
    assert record.getMessage() == "The dispatcher could not remove this job"
