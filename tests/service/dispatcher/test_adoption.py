"""Checkpoints whose registration never arrived are registered once their attempt has ended."""

import json
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from dasl_core.manifest import MANIFEST
from service.artifacts.storage import Storage
from service.client.worker import WorkerClient
from service.db.models import Attempt, Checkpoint
from service.dispatcher.adoption import Adoption
from service.object_store import open_store
from service.protocol import UNDELIVERED_EXIT_CODE
from service.scheduling.repository import AttemptView
from service.states import JobStatus
from tests.service.dispatcher.test_dispatcher_crashes import Crash, Death
from tests.support.dispatcher_world import World
from workers.reporter import ApiReporter

DAY = 24 * 3600


class Rank0:
    """Rank 0 of an attempt whose API does not answer."""

    def __init__(self, world: World, tmp_path: Path) -> None:
        self.root = Path(world.settings.artifacts_uri.removeprefix("file://"))
        self.scratch = tmp_path / "scratch"
        self.client = WorkerClient("http://127.0.0.1:9", "token", "no request is made")

    def folder(self, job: str, number: int = 1) -> Path:
        return self.root / "jobs" / job / "attempts" / str(number) / "checkpoints"

    def saves(self, job: str, step: int, number: int = 1, **about: Any) -> Path:
        """Write a checkpoint as the worker does; its report stays in the queue."""
        self.scratch.mkdir(exist_ok=True)
        (self.scratch / "weights").write_bytes(b"x" * step)
        (self.scratch / "state").write_bytes(b"y")
        uri = f"file://{self.folder(job, number).parent}"
        reporter = ApiReporter(self.client, job, number, uri, 1.0)
        reporter.checkpoint(
            self.scratch, step, step / 100, {"knn": 0.5}, **{"final": False, **about}
        )
        return self.folder(job, number) / f"step-{step:09d}"


@pytest.fixture
def rank0(world: World, tmp_path: Path) -> Rank0:
    return Rank0(world, tmp_path)


def registered(world: World, job: str, state: str = "registered") -> list[int]:
    with world.database.read() as session:
        query = select(Checkpoint.step).where(Checkpoint.job_id == job, Checkpoint.state == state)
        return list(session.scalars(query.order_by(Checkpoint.step)))


def resumed(world: World, job: str) -> Checkpoint:
    """Return the checkpoint that the second attempt resumes from."""
    with world.database.read() as session:
        return session.get_one(Checkpoint, world.attempt(job, 2).resume_checkpoint_id)


def test_next_attempt_resumes_from_a_checkpoint_that_was_never_reported(
    world: World, rank0: Rank0
) -> None:
    """The API is away for hours, and then the driver dies."""
    job = world.start_job()
    world.worker_sends_heartbeat(job, progress={"step": 5})
    folders = [rank0.saves(job, step) for step in (100, 200, 300)]
    world.tick(3600, times=10)
    world.executor.kill(world.run_id(job))
    world.tick(times=2)
    assert registered(world, job) == [100, 200, 300]
    assert world.job(job).attempt == 2
    newest = resumed(world, job)
    assert (newest.step, newest.epoch, newest.attempt) == (300, 3.0, 1)
    assert newest.uri == f"file://{folders[2]}"
    assert newest.metrics == {"knn": 0.5}
    assert {file["name"]: file["size"] for file in newest.files} == {"weights": 300, "state": 1}
    assert [message.partition(" at ")[2] for message in world.events(job, "checkpoint")] == [
        f"step {step}, which attempt 1 wrote but could not report" for step in (100, 200, 300)
    ]
    world.tick(2 * DAY)
    assert all(folder.exists() for folder in folders)


def without_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def half_a_manifest(folder: Path) -> None:
    content = (folder / "manifest.json").read_bytes()
    (folder / "manifest.json").write_bytes(content[: len(content) // 2])


def missing_file(folder: Path) -> None:
    (folder / "state").unlink()


def short_file(folder: Path) -> None:
    (folder / "weights").write_bytes(b"x")


def of_another_attempt(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"attempt": 2}))


def with_a_path(folder: Path) -> None:
    text = (folder / "manifest.json").read_text().replace("weights", "../weights")
    (folder / "manifest.json").write_text(text)


def test_damaged_checkpoints_are_removed_a_day_later(world: World, rank0: Rank0) -> None:
    job = world.start_job()
    kept, damaged = rank0.saves(job, 100), []
    damages = (without_manifest, half_a_manifest, missing_file, short_file, of_another_attempt)
    for step, damage in enumerate((*damages, with_a_path), start=200):
        damaged.append(rank0.saves(job, step))
        damage(damaged[-1])
    world.executor.kill(world.run_id(job))
    world.tick()
    assert registered(world, job) == [100]
    world.tick(DAY - 100)
    assert all(folder.exists() for folder in damaged)
    world.tick(3700)
    assert kept.exists()
    assert not any(folder.exists() for folder in damaged)


def test_dispatcher_that_starts_late_still_sweeps(world: World, rank0: Rank0) -> None:
    job = world.start_job(max_restarts=0)
    partial = rank0.saves(job, 100)
    without_manifest(partial)
    world.executor.kill(world.run_id(job))
    world.tick()
    world.ahead += timedelta(days=20)
    world.restart("second")
    world.tick(3601)
    assert not partial.exists()


def test_sweep_keeps_its_place_over_restarts(
    world: World, rank0: Rank0, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It began 30 days back at each start: 87,000 requests to the store on a cluster of a hundred nodes."""
    job = world.start_job(max_restarts=0)
    partial = rank0.saves(job, 100)
    without_manifest(partial)
    world.executor.kill(world.run_id(job))
    world.tick()
    swept = Adoption.sweep_attempt
    examined: list[str] = []

    def away(_: Adoption, attempt: AttemptView) -> None:
        raise OSError(f"the store is away: {attempt.owner}")

    def examine(adoption: Adoption, attempt: AttemptView) -> None:
        examined.append(attempt.owner)
        swept(adoption, attempt)

    with monkeypatch.context() as patch:
        patch.setattr(Adoption, "sweep_attempt", away)
        world.tick(DAY + 100)
    assert partial.exists(), "nothing was examined, so the sweep has not gone on"
    monkeypatch.setattr(Adoption, "sweep_attempt", examine)
    for holder in ("second", "third"):
        world.restart(holder)
        world.tick(7200)
    assert examined == [job]
    assert not partial.exists()


@pytest.mark.parametrize(("failures", "is_removed"), [(1, True), (2, True), (3, False)])
def test_sweep_comes_back_to_an_attempt_that_failed(
    world: World, rank0: Rank0, monkeypatch: pytest.MonkeyPatch, failures: int, is_removed: bool
) -> None:
    jobs = [world.start_job(max_restarts=0) for _ in range(2)]
    partial = rank0.saves(jobs[0], 100)
    without_manifest(partial)
    for job in jobs:
        world.executor.kill(world.run_id(job))
        world.tick()
    examine, left = Adoption.sweep_attempt, [OSError("slow down")] * failures

    def odd(adoption: Adoption, attempt: AttemptView) -> None:
        if attempt.owner == jobs[0] and left:
            raise left.pop()
        examine(adoption, attempt)

    monkeypatch.setattr(Adoption, "sweep_attempt", odd)
    world.main_round(DAY + 100)
    adoption = Adoption(world.dispatcher._context)
    for _ in range(5):
        adoption.sweep()
        world.ahead += timedelta(hours=1)
    assert partial.exists() != is_removed


def test_sweep_does_not_pass_an_attempt_that_is_not_finalized(world: World, rank0: Rank0) -> None:
    jobs = [world.start_job(max_restarts=0) for _ in range(2)]
    partial = rank0.saves(jobs[0], 100)
    without_manifest(partial)
    for job in jobs:
        world.executor.kill(world.run_id(job))
        world.tick()

    def settle(settled: bool) -> None:
        with world.database.write() as session:
            session.get_one(Attempt, (jobs[0], 1)).settled = settled

    settle(False)
    world.main_round(DAY + 100)
    Adoption(world.dispatcher._context).sweep()
    settle(True)
    assert partial.exists()
    Adoption(world.dispatcher._context).sweep()
    assert not partial.exists()


def test_failed_job_keeps_its_final_checkpoint(world: World, rank0: Rank0) -> None:
    job = world.start_job(max_restarts=0)
    rank0.saves(job, 100, final=True)
    world.executor.kill(world.run_id(job), signal.SIGSEGV)
    world.tick()
    assert world.status(job) == JobStatus.FAILED
    assert registered(world, job) == [100]
    assert world.events(job)[-1].startswith("Job failed"), "its end is its last event"


def test_end_that_was_not_reported_uses_no_restart(world: World, rank0: Rank0) -> None:
    """The API was away for more than ten minutes after the last step."""
    job = world.start_job(max_restarts=0)
    rank0.saves(job, 100, final=True)
    world.executor.end(world.run_id(job), UNDELIVERED_EXIT_CODE)
    world.tick(times=2)
    attempt = world.attempt(job)
    assert (attempt.state, (attempt.error or {})["type"]) == ("failed", "reports-undelivered")
    assert (world.status(job), world.job(job).restarts) == (JobStatus.STARTING, 0)
    assert resumed(world, job).final


def test_unavailable_store_delays_the_next_attempt_for_minutes_only(
    world: World, rank0: Rank0, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, asked = world.start_job(), list[str]()
    rank0.saves(job, 100)
    with monkeypatch.context() as patch:

        def fail(uri: str) -> list[str]:
            asked.append(uri)
            raise OSError("the store is away")

        patch.setattr(world.dispatcher._context.storage, "folders", fail)
        world.executor.kill(world.run_id(job))
        world.tick(times=4)
        assert len(asked) == 1, "it is asked again after half a minute"
        world.tick(120, times=4)
        assert not world.attempt(job).settled
        assert world.job(job).attempt == 1
        world.tick(120)
        world.tick(120)
        assert world.job(job).attempt == 2
    assert registered(world, job) == []
    world.tick(DAY + 3600)
    assert registered(world, job) == [100], "it is found a day later"


@pytest.mark.dialect(slow="postgresql")
def test_adoption_recovers_from_crash_at_every_point(
    world: World, rank0: Rank0, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after each commit of the finalization: two adoptions and the mark."""
    for at in range(6):
        job = world.start_job()
        for saved in (100, 200):
            rank0.saves(job, saved)
        world.executor.kill(world.run_id(job))
        world.ahead += timedelta(seconds=2)
        world.dispatcher.tick()
        death = Death(at)
        with monkeypatch.context() as patch:
            patch.setattr(world.database, "write", death.around_commits(world.database.write))
            with pytest.raises(Crash):
                world.dispatcher.background["logs"].run_once()
        world.restart()
        world.tick()
        assert registered(world, job) == [100, 200]
        assert len(world.events(job, "checkpoint")) == 2
        world.tick()
        assert resumed(world, job).step == 200
        world.worker_finishes(job, "cancelled", 2)
        world.executor.kill(world.run_id(job, 2))
        world.tick()


@pytest.mark.slow
def test_checkpoints_on_s3_are_adopted_if_whole_and_else_removed(
    world: World, rank0: Rank0, s3_root: str
) -> None:
    world.settings.artifacts_uri = s3_root
    world.restart()
    job = world.start_job()
    world.worker_sends_heartbeat(job, progress={"step": 5})
    storage = Storage(s3_root)
    attempt = storage.attempt_uri(job, 1)
    rank0.scratch.mkdir()
    (rank0.scratch / "weights").write_bytes(b"x")
    reporter = ApiReporter(rank0.client, job, 1, attempt, 1.0)
    for step in (100, 200):
        reporter.checkpoint(rank0.scratch, step, 1.0, {}, final=False)
    # Rank 0 was killed while it uploaded this one.
    fs, torn = open_store(f"{attempt}/checkpoints/step-000000300")
    fs.pipe_file(f"{torn}/weights", b"x")
    world.executor.kill(world.run_id(job))
    world.tick(times=2)
    assert registered(world, job) == [100, 200]
    assert resumed(world, job).step == 200
    world.tick(2 * DAY)
    world.tick(2 * DAY)
    files = {
        step: set(storage.file_sizes(f"{attempt}/checkpoints/step-{step:09d}"))
        for step in (100, 200, 300)
    }
    assert files == {100: {"weights", MANIFEST}, 200: {"weights", MANIFEST}, 300: set()}
    assert registered(world, job) == [100, 200]
