"""Ends of logs whose attempts were finalized while the artifact store was away."""

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from service.artifacts.attempt_log import AttemptLog
from service.artifacts.storage import Storage
from service.db.models import Job
from service.dispatcher import context
from service.states import JobStatus
from tests.support.dispatcher_world import World
from tests.support.s3_server import S3Server


def folder(world: World) -> Path:
    return Path(world.settings.artifacts_uri.removeprefix("file://"))


def break_store(world: World) -> None:
    shutil.rmtree(folder(world), ignore_errors=True)
    folder(world).write_text("a file where a folder must be")


def repair_store(world: World) -> None:
    folder(world).unlink()


def run(world: World) -> str:
    """Start a job, whose driver prints a line."""
    job = world.start_job()
    return job


def end(world: World, job: str) -> None:
    world.worker_finishes(job, "succeeded")
    world.executor.end(world.run_id(job), 0, "the last word")


def lose_end_of_log(world: World) -> str:
    """Let a job end while the store refuses; return its id."""
    job = run(world)
    break_store(world)
    end(world, job)
    world.tick()
    assert world.num_unfinalized() == 0, "the attempt ends without its store"
    return job


def stored(world: World, job: str) -> bytes:
    log = AttemptLog(Storage(world.settings.artifacts_uri), job, 1)
    return b"".join(log.text())


def whole(job: str) -> bytes:
    return f"driver {job} 1\nthe last word\n".encode()


@pytest.mark.slow
def test_log_of_an_attempt_that_ended_without_its_s3_store_is_completed(
    world: World, s3_server: S3Server, s3_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the ended attempts wait for the store at the same time, each once."""
    monkeypatch.setattr("service.object_store._RETRY", timedelta(seconds=0.2))
    monkeypatch.setattr(context, "_LONG_SECONDS", 0.0)
    world.settings.artifacts_uri = s3_root
    world.restart()
    jobs = [run(world) for _ in range(2)]
    s3_server.kill()
    try:
        for job in jobs:
            end(world, job)
        lists: list[str] = []

        def counted(call: Callable[..., Any]) -> Callable[..., Any]:
            def count(*arguments: Any) -> Any:
                lists.append(call.__name__)
                return call(*arguments)

            return count

        monkeypatch.setattr(Storage, "folders", counted(Storage.folders))
        monkeypatch.setattr(AttemptLog, "parts", counted(AttemptLog.parts))
        world.tick()
        assert [world.status(job) for job in jobs] == [JobStatus.SUCCEEDED] * 2
        assert world.num_unfinalized() == 0
        assert len(lists) <= len(jobs)
    finally:
        s3_server.start()
    world.tick(60)
    assert [stored(world, job) for job in jobs] == [whole(job) for job in jobs]


def test_end_of_log_is_stored_once_the_store_accepts_it(world: World) -> None:
    job = lose_end_of_log(world)
    world.tick(60)
    repair_store(world)
    world.tick(10)
    assert stored(world, job) == b"", "it was just tried"
    world.tick(30)
    assert stored(world, job) == whole(job)


@pytest.mark.parametrize("again", [False, True], ids=["new", "in charge again"])
def test_end_of_log_that_a_killed_dispatcher_left_is_stored(world: World, again: bool) -> None:
    first = world.dispatcher
    world.tick()
    lease = world.settings.lease_seconds
    world.ahead += timedelta(seconds=2 * lease)
    world.restart("second")
    job = lose_end_of_log(world)
    repair_store(world)
    world.ahead += timedelta(seconds=2 * lease)
    if again:
        world.dispatcher = first
    else:
        world.restart("third")
    world.tick()
    assert stored(world, job) == whole(job)


@pytest.mark.parametrize("removed", ["deleted_at", "logs_removed_at"])
def test_removed_logs_are_not_stored_again(world: World, removed: str) -> None:
    job = lose_end_of_log(world)
    with world.database.write() as session:
        setattr(session.get_one(Job, job), removed, world.now())
    repair_store(world)
    world.tick(60)
    world.restart()
    world.tick()
    assert not folder(world).exists() or stored(world, job) == b""


def test_end_of_log_is_lost_after_a_day(world: World, caplog: pytest.LogCaptureFixture) -> None:
    job = lose_end_of_log(world)
    world.tick(24 * 3600 + 60)
    assert caplog.text.count("was not stored for a day") == 1
    repair_store(world)
    world.tick(60)
    assert stored(world, job) == b""


def test_log_that_ray_has_forgotten_is_not_awaited(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    job = lose_end_of_log(world)
    world.executor.away = True
    world.tick(60)
    world.executor.away = False
    world.executor.lose_everything()
    repair_store(world)
    world.tick(60, times=3)
    assert stored(world, job) == b""
    assert caplog.text.count("Ray no longer has the log") == 1
