"""Outages of the artifact store: no job fails by one, and none starts in it."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from service.artifacts.storage import Storage
from service.runs.endings import MAX_INFRASTRUCTURE_FAILURES, Retry, charge
from service.states import JobStatus
from tests.support.dispatcher_world import World

ERROR = {"type": "store-unavailable", "message": "the store does not answer"}


def away(_: Storage) -> None:
    raise ValueError("s3://bucket (DASL_ARTIFACTS_URI) cannot be written")


def test_jobs_wait_for_the_store_and_none_fails(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.start_job(workers=2, max_restarts=0)
    with monkeypatch.context() as outage:
        outage.setattr(Storage, "check_writable", away)
        world.worker_finishes(job, "failed", error=ERROR, retry=Retry.OUTAGE)
        world.executor.end(world.run_id(job), 1)
        world.tick(61)
        assert world.status(job) == JobStatus.RETRY_WAIT, "it pauses until the outage is known"
        queued = world.add_job()
        world.tick(1200, times=3)
        for each in (job, queued):
            assert world.status(each) == JobStatus.QUEUED
            [reason] = world.events(each, "waiting")
            assert "the artifact store" in reason
    world.tick(61)
    world.tick()
    assert world.executor.submitted[-1] == world.run_id(job, 2)
    assert (world.job(job).restarts, world.job(job).infrastructure_failures) == (0, 1)


def test_store_that_hangs_starts_no_job(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    during: list[JobStatus] = []

    def hangs(_: Storage) -> None:
        world.ahead += timedelta(minutes=6)
        job = world.add_job()
        world.dispatcher.tick()
        during.append(world.status(job))

    monkeypatch.setattr(Storage, "check_writable", hangs)
    world.tick()
    assert during == [JobStatus.QUEUED]


@pytest.mark.parametrize(
    ("check", "restarts"), [(away, 0), (lambda _: None, 1)], ids=["away", "writable"]
)
def test_hang_while_the_store_is_away_uses_no_restart(
    world: World, monkeypatch: pytest.MonkeyPatch, check: Callable[[Storage], None], restarts: int
) -> None:
    monkeypatch.setattr(world.settings, "hang_seconds", 200)
    job = world.add_job()
    world.dispatcher.tick()
    world.worker_starts(job)
    monkeypatch.setattr(Storage, "check_writable", check)
    for _ in range(4):
        world.tick(100)
        if world.status(job) == JobStatus.RUNNING:
            world.worker_sends_heartbeat(job, progress={"step": 1})
    assert world.attempt(job).error is not None
    assert world.job(job).restarts == restarts


def test_store_that_only_the_ranks_do_not_reach_is_not_tried_for_ever(world: World) -> None:
    """As where its nodes lack the credentials. Meanwhile the job keeps its CPUs and GPUs."""
    job = world.add_job()
    for number in range(1, MAX_INFRASTRUCTURE_FAILURES + 2):
        world.tick()
        world.worker_starts(job, number)
        world.worker_finishes(job, "failed", number, error=ERROR, retry=Retry.OUTAGE)
        world.executor.end(world.run_id(job, number), 1)
        world.tick(121)
    assert world.status(job) == JobStatus.FAILED
    assert world.job(job).restarts == 0


def test_outage_pauses_longer_than_the_store_is_checked() -> None:
    budget = charge(Retry.OUTAGE, restarts=3, max_restarts=3, failures=0, progressed=False)
    assert budget.used_up is None
    assert (budget.restarts, budget.infrastructure_failures) == (3, 1)
    assert budget.delay > timedelta(minutes=1)


def test_ingests_wait_for_the_store(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as outage:
        outage.setattr(Storage, "check_writable", away)
        world.tick(61)
        dataset = world.add_dataset()
        world.tick()
        assert world.dataset(dataset).state == "pending"
    world.tick(61)
    world.tick()
    assert world.dataset(dataset).state == "ingesting"
