"""Removal of ended submissions from Ray: what is removed, when, and what stays."""

from datetime import timedelta

import pytest

from service.dispatcher.executor import ExecutorUnavailable
from service.dispatcher.submission_removal import KEEP, SubmissionRemoval
from service.states import JobStatus
from tests.support.dispatcher_world import World

LONG = KEEP.total_seconds()


def known(world: World, submission_id: str) -> bool:
    return world.executor.status(submission_id) is not None


def succeed(world: World) -> str:
    """Run a job to its end; return its submission id."""
    job = world.start_job()
    world.end_job(job, "succeeded")
    world.tick()
    assert world.status(job) == JobStatus.SUCCEEDED
    return world.run_id(job)


def ingest(world: World) -> str:
    """Ingest a data set; return its submission id."""
    dataset = world.add_dataset()
    world.tick()
    world.end_ingest(dataset)
    world.executor.end(world.run_id(dataset), 0)
    return world.run_id(dataset)


def test_submissions_of_ended_runs_are_removed_days_later(world: World) -> None:
    ended = [succeed(world), ingest(world)]
    world.tick(LONG - 600)
    assert all(known(world, name) for name in ended), "their logs may still be copied"
    world.tick(1200)
    assert not any(known(world, name) for name in ended)


def test_submission_of_a_run_that_is_not_finalized_stays(world: World) -> None:
    """It would count as lost, or its log be lost."""
    job, dataset = world.add_job(), world.add_dataset()
    world.tick()
    world.worker_starts(job)
    world.worker_finishes(job, "succeeded")
    for _ in range(3):
        world.ahead += timedelta(seconds=LONG)
        world.dispatcher.background["garbage"].run_once()
    assert known(world, world.run_id(job))
    assert known(world, world.run_id(dataset))


def test_removal_that_a_killed_dispatcher_missed_is_made_by_the_next(world: World) -> None:
    ended = succeed(world)
    world.ahead += timedelta(seconds=LONG + 3600)
    assert known(world, ended)
    world.restart()
    world.tick()
    assert not known(world, ended)
    world.restart()
    world.tick()  # Ray does not know it any more.


def test_submission_that_ray_does_not_remove_holds_up_no_others(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stays, goes = succeed(world), succeed(world)
    delete = world.executor.delete

    def delete_others(submission_id: str) -> bool:
        if submission_id == stays:
            raise ExecutorUnavailable("out of order")
        return delete(submission_id)

    monkeypatch.setattr(world.executor, "delete", delete_others)
    world.tick(LONG + 600)
    world.tick(times=3)
    assert known(world, goes), "the next try is minutes later"
    world.tick(600)
    assert (known(world, stays), known(world, goes)) == (True, False)
    assert caplog.text.count("out of order") == 1


def test_programs_that_showed_a_demand_are_removed_once_they_have_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.settings.autoscale = True
    world.restart()
    world.add_job(workers=2)
    world.ahead += timedelta(seconds=60)
    world.dispatcher.tick()
    [program] = [name for name in world.executor.submitted if name.startswith("demand-")]
    world.executor.output(program)
    with monkeypatch.context() as patch:
        patch.setattr(world.executor, "delete", lambda submission_id: False)  # It runs.
        world.tick()
    assert known(world, program)
    world.tick(60)
    assert not known(world, program)
    assert world.dispatcher._context.demand_programs == set()


def test_programs_that_ray_does_not_remove_hold_up_no_ended_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = succeed(world)

    def fail(_: object) -> None:
        raise ExecutorUnavailable("out of order")

    monkeypatch.setattr(SubmissionRemoval, "_remove_demand_programs", fail)
    world.tick(LONG + 600)
    world.tick()
    assert not known(world, ended)
