"""A dispatcher with a job whose stored spec cannot be read starts and finalizes the other jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dasl_core.spec import versions
from service.db.models import Job
from service.scheduling import repository as scheduling
from service.scheduling.packing import Demand, Worker
from service.states import JobStatus
from tests.support.dispatcher_world import World
from tests.support.unreadable_specs import UNREADABLE, fail_on_unexpected


def test_numbers_of_a_spec_that_cannot_be_read_count(world: World) -> None:
    left: dict[str, Any] = {"cpus_per_worker": "auto", "gpus_per_worker": "auto"}
    jobs = [world.add_job(workers=2, **numbers) for numbers in ({}, left, {"cpus_per_worker": "x"})]
    with world.database.write() as session:
        for job_id in jobs:
            session.get_one(Job, job_id).spec_version = 10**6
    with world.database.read() as session:
        demands = [scheduling.demand_of(session, each, None, cpus=4, gpus=1) for each in jobs]
        least = scheduling.demand_of(session, jobs[1], None)
    assert demands == [
        Demand(2, Worker(1, 0)),
        Demand(2, Worker(4, 1)),
        Demand(0, Worker(1, 0)),
    ]
    assert least == Demand(2, Worker(1, 0))


@pytest.mark.parametrize("spoil", UNREADABLE.values(), ids=UNREADABLE)
def test_dispatcher_starts_the_other_jobs(
    world: World, spoil: Callable[[Job], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "UPGRADERS", [fail_on_unexpected])
    running = world.add_job()
    world.tick()
    world.worker_starts(running)
    queued = world.add_job(priority=1)
    with world.database.write() as session:
        for job_id in (running, queued):
            spoil(session.get_one(Job, job_id))
    monkeypatch.setattr(scheduling.resources, "_resources_by_job", {})
    world.restart()
    healthy = world.add_job()
    world.tick()
    assert world.status(healthy) == JobStatus.STARTING
    assert world.status(queued) == JobStatus.QUEUED
    assert world.status(running) == JobStatus.RUNNING
    world.executor.kill(world.run_id(running))
    world.tick()
    assert world.status(running) == JobStatus.RETRY_WAIT
    world.tick(300)
    world.tick()
    assert world.status(running) == JobStatus.QUEUED
