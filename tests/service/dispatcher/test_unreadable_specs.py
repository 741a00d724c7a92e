"""A dispatcher with a job whose stored spec cannot be read starts and finalizes the other jobs."""

from collections.abc import Callable

import pytest

from dasl_core.spec import versions
from service.db.models import Job
from service.scheduling import repository as scheduling
from service.states import JobStatus
from tests.support.dispatcher_world import World
from tests.support.unreadable_specs import UNREADABLE, fail_on_unexpected


@pytest.mark.parametrize("spoil", UNREADABLE.values(), ids=UNREADABLE)
def test_dispatcher_starts_the_other_jobs(
    world: World, spoil: Callable[[Job], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "UPGRADERS", [fail_on_unexpected])
    running = world.start_job()
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
