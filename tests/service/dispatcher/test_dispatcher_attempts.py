"""Attempts from start to end, with a fake executor and a clock that the test moves."""

import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from service import lifecycle
from service.credentials import hash_token
from service.db.models import Attempt, Checkpoint, Event, Job
from service.dispatcher.context import Restarted
from service.dispatcher.executor import ExecutorUnavailable, LogPiece, SubmissionRefused
from service.runs.endings import Retry
from service.scheduling import repository as scheduling
from service.states import AttemptState, Desired, JobStatus, StopReason
from tests.support.dispatcher_world import World, failure


def test_job_starts_with_its_own_token(world: World) -> None:
    job = world.add_job()
    world.tick()
    assert world.status(job) == JobStatus.STARTING
    assert world.executor.submitted == [world.run_id(job)]
    attempt = world.attempt(job)
    assert attempt.state == AttemptState.SUBMITTED
    env = world.executor.envs[world.run_id(job)]
    assert env["DASL_API_URL"] == "http://127.0.0.1:8123"
    assert hash_token(env["DASL_WORKER_TOKEN"]) == attempt.token_hash
    world.tick()
    assert world.executor.submitted == [world.run_id(job)]


def test_run_that_a_restored_database_does_not_know_is_not_adopted(world: World) -> None:
    """Ray still runs the first attempt of the job, of which the backup has no row."""
    job = world.add_job()
    world.tick()
    later = world.run_id(job)
    with world.database.write() as session:
        session.delete(session.get_one(Attempt, (job, 1)))
        row = session.get_one(Job, job)
        row.status, row.attempt = "queued", 0
    world.restart("of the restored database")
    world.tick(60)
    world.tick()
    assert world.executor.submitted == [later, world.run_id(job)]
    assert later != world.run_id(job)
    token = world.executor.envs[world.run_id(job)]["DASL_WORKER_TOKEN"]
    assert hash_token(token) == world.attempt(job).token_hash


def test_reported_success_ends_job_and_keeps_log(world: World) -> None:
    job = world.start_job()
    world.tick()
    assert world.log(job) == f"driver {job} 1\n"
    world.worker_finishes(job, "succeeded")
    world.executor.end(world.run_id(job), 0, "the last word")
    world.tick()
    assert world.status(job) == JobStatus.SUCCEEDED
    assert world.log(job) == f"driver {job} 1\nthe last word\n"


def test_killed_driver_is_replaced_from_newest_checkpoint(world: World) -> None:
    job = world.start_job()
    world.add_checkpoint(job, 1, step=10)
    newest = world.add_checkpoint(job, 1, step=20)
    world.executor.kill(world.run_id(job), signal.SIGKILL)
    world.tick()
    assert world.status(job) == JobStatus.RETRY_WAIT
    error = failure(world.attempt(job))
    assert error["message"] == f"The training driver was ended by SIGKILL: driver {job} 1"
    world.tick(0)
    assert world.status(job) == JobStatus.RETRY_WAIT  # A retry starts after a pause.
    world.tick(5)
    assert world.executor.submitted == [world.run_id(job), world.run_id(job, 2)]
    assert world.attempt(job, 2).resume_checkpoint_id == newest
    assert world.job(job).restarts == 0


def lose_ray(world: World, job: str, number: int) -> None:
    """Start the next attempt, and lose it with Ray."""
    world.worker_starts(job, number)
    world.executor.lose_everything()
    world.tick(31)


def test_restarts_of_ray_use_no_restart_of_jobs(world: World) -> None:
    job = world.add_job(max_restarts=0)
    for number in range(1, 13):
        world.tick(121)
        assert world.job(job).attempt == number
        world.add_metric(job, number, step=number)
        lose_ray(world, job, number)
    assert world.status(job) == JobStatus.RETRY_WAIT
    assert world.job(job).restarts == 0
    assert world.events(job)[-1].endswith(
        "Infrastructure failure 1 of 10 in a row without progress; retried in 2 s without using up a restart"
    )


@pytest.mark.parametrize("progress", ["", "a checkpoint"])
def test_job_that_always_loses_its_processes_fails(world: World, progress: str) -> None:
    """It may itself be what kills them."""
    job = world.add_job()
    for number in range(1, 12):
        world.tick(121)
        world.worker_starts(job, number)
        world.add_metric(job, number, step=7)  # the same step again
        if progress and number == 6:
            world.add_checkpoint(job, number, step=7)
        world.executor.kill(world.run_id(job, number))
        world.tick()
    assert world.job(job).restarts == 0
    if progress:
        assert world.job(job).infrastructure_failures == 6
        return
    assert world.status(job) == JobStatus.FAILED
    assert world.events(job)[-1].startswith(
        "Job failed (after 11 infrastructure failures in a row without progress): The training driver"
    )


def test_repeatedly_failing_job_fails_with_end_of_log(world: World) -> None:
    job = world.start_job(max_restarts=1)
    world.executor.end(world.run_id(job), 1, "ValueError: once")
    world.tick()
    world.tick(10)
    world.executor.end(world.run_id(job, 2), 1, "ValueError: twice")
    world.tick()
    assert world.status(job) == JobStatus.FAILED
    error = failure(world.job(job))
    assert error["type"] == "driver-ended"
    assert error["message"] == "The training driver ended with exit code 1: ValueError: twice"
    assert error["log_tail"] == [f"driver {job} 2", "ValueError: twice"]


def test_reported_error_includes_end_of_log(world: World) -> None:
    job = world.start_job()
    error = {"type": "ValueError", "message": "no images"}
    world.worker_finishes(job, "failed", error=error, retry=Retry.NEVER)
    world.executor.end(world.run_id(job), 0, "bye")
    world.tick()
    assert world.status(job) == JobStatus.FAILED
    assert world.job(job).error == {**error, "log_tail": [f"driver {job} 1", "bye"]}


def test_unavailable_executor_ends_no_attempt(world: World) -> None:
    job = world.start_job()
    world.executor.away = True
    world.tick(100, times=5)
    assert world.status(job) == JobStatus.RUNNING
    world.executor.away = False
    world.tick(100)
    assert world.status(job) == JobStatus.RUNNING
    assert world.executor.is_running(world.run_id(job))


def test_attempt_unknown_to_ray_is_lost_after_lease(world: World) -> None:
    job = world.start_job()
    world.worker_sends_heartbeat(job)
    world.executor.lose_everything()
    world.tick(20)
    assert world.status(job) == JobStatus.RUNNING  # Workers may continue without their head.
    world.tick(20)
    assert world.status(job) == JobStatus.RETRY_WAIT
    assert world.attempt(job).state == AttemptState.LOST


@pytest.mark.parametrize("restarted", ["ray", "service"])
def test_attempt_of_replaced_cluster_is_lost_at_once(world: World, restarted: Restarted) -> None:
    job = world.start_job(max_restarts=0)
    world.worker_sends_heartbeat(job)
    world.executor.lose_everything()
    world.restart().cluster_was_restarted(restarted)
    world.tick()
    assert world.attempt(job).state == AttemptState.LOST
    world.tick(10)
    assert world.executor.submitted == [world.run_id(job), world.run_id(job, 2)]
    assert world.job(job).restarts == 0
    message = (
        "Attempt 1 lost: The service, or its machine, was stopped while the attempt ran. "
        "It is retried without using up a restart"
    )
    assert (message in world.events(job)) == (restarted == "service")


def test_used_room_is_counted_once(world: World) -> None:
    def cpus() -> int:
        with world.database.read() as session:
            return sum(one.demand.cpus for one in scheduling.resources_in_use(session, world.now()))

    job = world.add_job(workers=2)
    assert cpus() == 0
    world.tick()
    world.worker_starts(job)
    assert cpus() == 2
    # The driver still runs, and the job keeps its resources for the retry.
    world.worker_finishes(job, "failed", error={"type": "x", "message": "y"})
    assert (world.status(job), cpus()) == (JobStatus.RETRY_WAIT, 2)
    world.cancel(job)
    assert (world.status(job), cpus()) == (JobStatus.CANCELLED, 2), "until its driver is gone"
    world.executor.end(world.run_id(job), 1)
    world.tick()
    assert cpus() == 0


def test_cancel_waits_for_running_job_and_then_stops_it(world: World) -> None:
    job = world.start_job()
    world.cancel(job)
    world.tick()
    assert world.status(job) == JobStatus.CANCELLING
    ranks_hang(world, job, 30)
    assert world.executor.is_running(world.run_id(job))
    ranks_hang(world, job, 20)
    assert world.executor.stopped == [world.run_id(job)]
    world.tick()
    assert world.status(job) == JobStatus.CANCELLED
    assert world.job(job).error is None


@pytest.mark.parametrize("request_stop", [World.pause, World.cancel])
def test_attempt_that_saves_is_not_stopped_until_it_stands_still(
    world: World, request_stop: Callable[[World, str], None]
) -> None:
    """Rank 0 evaluates or uploads for minutes, and reports progress meanwhile."""
    job = world.start_job()
    world.worker_trains(job, 1000)
    request_stop(world, job)
    works_for(world, job, 200)
    assert world.executor.is_running(world.run_id(job))
    ranks_hang(world, job, 30)
    assert world.executor.is_running(world.run_id(job))
    ranks_hang(world, job, 20)
    assert not world.executor.is_running(world.run_id(job))


@pytest.mark.parametrize("heard", ["never", "for a moment"])
def test_attempt_that_cannot_reach_the_api_is_not_stopped_unsaved(world: World, heard: str) -> None:
    """Its ranks do not know of the request, or save and cannot report that."""
    job = world.start_job()
    world.worker_trains(job, 100)
    world.pause(job)
    if heard == "for a moment":
        world.tick()
        world.worker_sends_heartbeat(job)
    world.tick(200)
    assert world.executor.is_running(world.run_id(job))
    # The API is back: the driver reaches it first, and its ranks have time to save.
    ranks_hang(world, job, 20)
    works_for(world, job, 40)
    assert world.executor.is_running(world.run_id(job))
    ranks_hang(world, job, 50)
    assert not world.executor.is_running(world.run_id(job))


def test_preempted_attempt_that_cannot_reach_the_api_is_stopped_in_the_end(world: World) -> None:
    job = world.start_job()
    world.worker_trains(job, 100)
    with world.database.write() as session:
        assert lifecycle.request_stop(session, job, 1, StopReason.PREEMPTED, "Make room")
    world.tick(880)
    assert world.executor.is_running(world.run_id(job))
    world.tick(40)
    assert not world.executor.is_running(world.run_id(job))


def test_attempt_that_ignores_pause_is_stopped_in_the_end(world: World) -> None:
    job = world.start_job()
    world.pause(job)
    works_for(world, job, 880)
    assert world.executor.is_running(world.run_id(job))
    works_for(world, job, 40)
    assert not world.executor.is_running(world.run_id(job))
    world.tick()
    assert world.status(job) == JobStatus.PAUSED


def ranks_hang(world: World, job: str, seconds: int, number: int = 1) -> None:
    """Let only the heartbeats of the driver arrive, every ten seconds."""
    for _ in range(0, seconds, 10):
        world.tick(10)
        if not world.executor.is_running(world.run_id(job, number)):
            return
        world.worker_sends_heartbeat(job, number)


def works_for(world: World, job: str, seconds: int) -> None:
    """Let an attempt report work between steps."""
    for _ in range(0, seconds, 20):
        world.worker_sends_heartbeat(job, progress={"step": 900, "worked": world.ahead.seconds})
        world.main_round(20)


def test_cancel_during_start_stops_at_once(world: World) -> None:
    job = world.add_job()
    world.tick()
    world.cancel(job)
    world.tick(times=2)
    assert world.status(job) == JobStatus.CANCELLED
    assert not world.executor.is_running(world.run_id(job))


def test_cancelled_job_leaves_no_driver(world: World) -> None:
    job = world.start_job()
    world.cancel(job)
    world.tick()
    world.worker_finishes(job, "cancelled")
    world.tick()
    assert world.executor.is_running(
        world.run_id(job)
    )  # The driver has a grace period to end by itself.
    world.restart()
    world.tick(40)
    assert not world.executor.is_running(world.run_id(job))


def test_paused_job_frees_room_and_resumes_from_its_checkpoint(world: World) -> None:
    job, other = world.add_job(workers=2), world.add_job(workers=2)
    world.tick()
    world.worker_starts(job)
    world.pause(job)
    world.tick()
    assert world.status(job) == JobStatus.PAUSING
    checkpoint = world.add_checkpoint(job, 1, step=7)
    world.worker_finishes(job, "paused")
    assert world.status(job) == JobStatus.PAUSED
    assert world.events(job)[-1] == "Job paused"
    world.executor.end(world.run_id(job), 0)
    world.tick(times=2)
    assert world.executor.submitted == [world.run_id(job), world.run_id(other)]
    world.end_job(other, "succeeded")
    world.tick(times=2)
    assert world.status(job) == JobStatus.PAUSED, "no one resumed it"
    world.resume(job)
    world.tick()
    assert world.attempt(job, 2).resume_checkpoint_id == checkpoint
    assert world.executor.submitted[-1] == world.run_id(job, 2)
    assert world.job(job).restarts == 0


def test_job_that_does_not_pause_is_stopped_and_paused(world: World) -> None:
    job = world.add_job()
    for cycle in (1, 2):  # the second time, the first request must not count
        world.tick()
        world.worker_starts(job, cycle)
        world.worker_trains(job, 300, number=cycle)
        world.pause(job)
        with world.database.write() as session:
            event = session.scalars(
                select(Event)
                .where(Event.job_id == job, Event.type == "pause-requested")
                .order_by(Event.seq.desc())
            ).first()
            assert event is not None
            event.at = world.now()
        ranks_hang(world, job, 30, cycle)
        assert world.executor.is_running(world.run_id(job, cycle))
        ranks_hang(world, job, 20, cycle)
        world.tick()
        assert not world.executor.is_running(world.run_id(job, cycle))
        assert world.status(job) == JobStatus.PAUSED
        assert world.job(job).error is None
        assert world.events(job)[-1] == (
            "Job paused. It had to be killed and will repeat the steps after its last checkpoint"
        )
        world.resume(job)


@pytest.mark.parametrize("state", ["queued", "starting", "retrying"])
def test_pause_before_start_is_immediate(world: World, state: str) -> None:
    job = world.add_job()
    if state != "queued":
        world.tick()
    if state == "retrying":
        world.executor.kill(world.run_id(job))
        world.tick()
        assert world.status(job) == JobStatus.RETRY_WAIT
    world.pause(job)
    world.tick()
    world.tick(200)
    assert world.status(job) == JobStatus.PAUSED
    assert not any(map(world.executor.is_running, world.executor.submitted))
    world.cancel(job)
    assert world.status(job) == JobStatus.CANCELLED


def test_job_that_fails_while_pausing_is_paused(world: World) -> None:
    """Also without a restart left: a failed job could not be resumed."""
    job = world.add_job(max_restarts=1)
    for number in (1, 2):
        world.tick()
        world.worker_starts(job, number)
        world.pause(job)
        world.executor.end(world.run_id(job, number), 1)
        world.tick()
        assert world.status(job) == JobStatus.PAUSED
        error = failure(world.job(job))
        assert error == world.attempt(job, number).error
        assert error["message"] in world.events(job)[-1]
        world.resume(job)
        assert world.job(job).error is None
    world.tick()
    world.executor.end(world.run_id(job, 3), 1)
    world.tick()
    assert world.status(job) == JobStatus.FAILED
    assert world.job(job).restarts == 1


@pytest.mark.parametrize("retry", [Retry.LIMITED, Retry.UNLESS_REPEATED, Retry.NEVER])
def test_attempt_that_cannot_save_at_the_time_limit_pauses_its_job(
    world: World, retry: Retry
) -> None:
    job = world.start_job(max_hours=0.1, max_restarts=0)
    world.worker_trains(job, 360)
    world.tick(10)
    assert world.status(job) == JobStatus.PAUSING
    error = {"type": "storage-full", "message": "The disk of /scratch is full"}
    world.worker_finishes(job, "failed", error=error, retry=retry)
    stored = failure(world.attempt(job))
    assert stored["type"] == "storage-full"
    if retry == Retry.NEVER:
        assert world.status(job) == JobStatus.FAILED
        return
    assert world.status(job) == JobStatus.PAUSED
    assert error["message"] in world.events(job)[-1]
    shown = failure(world.job(job))
    assert shown["type"] == "max-hours"


@pytest.mark.parametrize("spelled", ["file://{}", "{}", "/another/mount{}"])
def test_unregistered_files_of_killed_attempt_are_removed(world: World, spelled: str) -> None:
    """The API names the artifacts' URI, and may see them at a different place."""
    job = world.start_job()
    root = Path(world.settings.artifacts_uri.removeprefix("file://"))
    folder = root / "jobs" / job / "attempts" / "1" / "checkpoints"
    for name in ("step-3", "step-6"):
        (folder / name).mkdir(parents=True)
        (folder / name / "weights").touch()
    (folder / "deep" / "step-9").mkdir(parents=True)
    world.add_checkpoint(job, 1, step=3, uri=spelled.format(f"{folder}/step-3"))
    world.add_checkpoint(job, 1, step=9, uri=spelled.format(f"{folder}/deep/step-9"))
    world.tick()
    world.executor.kill(world.run_id(job))
    world.tick()
    world.worker_finishes(job, "cancelled", 2)
    world.tick(86_000)
    assert len(list(folder.iterdir())) == 3, "it is kept for a day"
    world.tick(4000)
    assert sorted(path.name for path in folder.iterdir()) == ["deep", "step-3"]


def test_checkpoints_at_other_paths_keep_their_attempt_files(world: World) -> None:
    job = world.start_job()
    root = Path(world.settings.artifacts_uri.removeprefix("file://"))
    folder = root / "jobs" / job / "attempts" / "1" / "checkpoints" / "step-3"
    folder.mkdir(parents=True)
    world.add_checkpoint(job, 1, step=3, uri="s3://bucket/step-3")
    world.executor.kill(world.run_id(job))
    world.tick(times=3)
    assert folder.exists()


def test_undeletable_checkpoint_does_not_stop_dispatcher(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """There are more of them than one round handles; a removable one is removed, and jobs start."""
    first = world.start_job()
    stuck = [
        world.add_checkpoint(first, 1, step=step, uri=f"file:///before/{step}")
        for step in range(25)
    ]
    root = Path(world.settings.artifacts_uri.removeprefix("file://"))
    place = root / "jobs" / first / "attempts" / "1" / "checkpoints" / "step-30"
    place.mkdir(parents=True)
    last = world.add_checkpoint(
        first, 1, step=30, uri=f"{world.settings.artifacts_uri}/{place.relative_to(root)}"
    )
    odd = world.add_checkpoint(first, 1, step=31, uri=f"{world.settings.artifacts_uri}/odd")
    remove = world.dispatcher._context.storage.remove

    def breaks(uri: str) -> None:
        if uri.endswith("/odd"):
            raise RuntimeError("what a store may raise")
        remove(uri)

    monkeypatch.setattr(world.dispatcher._context.storage, "remove", breaks)
    with world.database.write() as session:
        for each in (*stuck, last, odd):
            session.get_one(Checkpoint, each).state = "deleting"
    second = world.add_job()
    world.tick(times=3)
    assert world.status(second) == JobStatus.STARTING
    with world.database.read() as session:
        states = {each: session.get_one(Checkpoint, each).state for each in (*stuck, last, odd)}
    assert states == dict.fromkeys([*stuck, odd], "deleting") | {last: "deleted"}
    assert not place.exists()
    warnings = caplog.text.count("/before/0 is not below")
    assert warnings == 1, "not in every round"
    world.tick(301)
    assert caplog.text.count("/before/0 is not below") == 2, "but now and then"


def test_unstorable_characters_do_not_prevent_end_of_attempt(world: World) -> None:
    job = world.start_job()
    world.executor.write_log(world.run_id(job), b"before\0after\n")
    world.executor.kill(world.run_id(job))
    world.tick()
    assert world.status(job) == JobStatus.RETRY_WAIT
    error = failure(world.attempt(job))
    assert error["log_tail"][-1] == "before\ufffdafter"


def test_job_that_never_starts_ends_at_time_limit(world: World) -> None:
    """The driver hangs before its first request."""
    job = world.add_job(max_hours=0.2)
    world.tick()
    assert world.status(job) == JobStatus.STARTING
    world.tick(700)
    assert world.status(job) == JobStatus.STARTING
    world.tick(100)
    assert world.status(job) == JobStatus.PAUSING
    world.tick(times=2)
    assert world.status(job) == JobStatus.PAUSED
    assert not world.executor.is_running(world.run_id(job))


def error_type(world: World, job: str) -> str:
    error = failure(world.attempt(job))
    return str(error["type"])


def test_driver_that_never_reports_is_ended_and_retried(world: World) -> None:
    job = world.add_job()
    world.tick()
    world.tick(800)
    # Time without a dispatcher does not count: the API may have been away as well.
    world.ahead += timedelta(hours=5)
    world.restart("another")
    world.tick()
    world.tick(890)
    assert world.status(job) == JobStatus.STARTING
    world.tick(20)
    assert world.status(job) == JobStatus.RETRY_WAIT
    assert error_type(world, job) == "start-timeout"
    assert world.job(job).restarts == 0
    assert not world.executor.is_running(world.run_id(job))
    world.tick(10)
    assert world.executor.submitted == [world.run_id(job), world.run_id(job, 2)]


def test_attempt_that_ray_does_not_accept_is_queued_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_agent(*arguments: Any) -> None:
        raise ExecutorUnavailable("Ray answered POST /api/jobs/ with 500: No available agent")

    job = world.add_job(max_restarts=0)
    with monkeypatch.context() as patch:
        patch.setattr(world.executor, "submit", no_agent)
        for seconds in (2, 2, 890):
            world.tick(seconds)
        assert world.attempt(job).state == AttemptState.CREATED
        world.tick(20)
        assert error_type(world, job) == "start-timeout"
        assert world.job(job).restarts == 0
    world.tick(times=3)
    assert world.executor.submitted == [world.run_id(job, 2)]
    assert world.status(job) == JobStatus.STARTING


def test_attempt_that_has_reported_may_start_its_ranks_slowly(world: World) -> None:
    job = world.start_job()
    world.tick(1000)
    assert world.status(job) == JobStatus.RUNNING


def test_clock_set_back_does_not_hide_killed_driver(world: World) -> None:
    job = world.start_job()
    world.tick()
    world.ahead -= timedelta(hours=2)
    world.executor.kill(world.run_id(job))
    world.tick()
    assert world.status(job) == JobStatus.RETRY_WAIT


def test_clock_set_back_does_not_delay_lost_attempt(world: World) -> None:
    job = world.start_job()
    world.worker_sends_heartbeat(job)
    world.ahead -= timedelta(hours=2)
    world.executor.lose_everything()
    world.restart().cluster_was_restarted("service")
    world.tick()
    assert world.attempt(job).state == AttemptState.LOST
    assert world.job(job).restarts == 0


def test_clock_set_back_does_not_delay_other_work(world: World) -> None:
    """A lease from the future, a retry, and the grace period of a cancelled job must not block."""
    first, second = world.add_job(), world.add_job()
    world.tick()
    for job in (first, second):
        world.worker_starts(job)
    world.executor.kill(world.run_id(first))
    world.cancel(second)
    world.tick()
    assert world.status(first) == JobStatus.RETRY_WAIT
    world.ahead -= timedelta(hours=2)
    world.restart("another machine")
    world.tick(times=3)
    assert world.executor.submitted[-1] == world.run_id(first, 2)
    assert world.status(second) == JobStatus.CANCELLED


def test_training_without_api_continues(world: World) -> None:
    """The silence exceeds the limit for hangs, but silence does not prove a hang."""
    job = world.start_job()
    world.worker_sends_heartbeat(job, progress={"step": 1})
    world.tick(100, times=20)
    assert world.status(job) == JobStatus.RUNNING
    world.worker_sends_heartbeat(job, progress={"step": 900})
    world.tick()
    assert world.status(job) == JobStatus.RUNNING


def test_hanging_attempt_is_ended_and_retried(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.start_job()
    stop, states = world.executor.stop, []

    def stopped(submission_id: str) -> None:
        states.append(world.attempt(job).state)
        stop(submission_id)

    monkeypatch.setattr(world.executor, "stop", stopped)
    for step in range(3):  # slow, but with progress
        stands_still(world, job, 1000, {"step": step})
    assert world.status(job) == JobStatus.RUNNING
    stands_still(world, job, 1700, {"step": 2})
    assert world.status(job) == JobStatus.RETRY_WAIT
    error = failure(world.attempt(job))
    assert error["type"] == "hang"
    assert states[0] == AttemptState.FAILED, "what its processes report until they stop is refused"
    assert not world.executor.is_running(world.run_id(job))
    world.tick(10)
    assert world.executor.submitted == [world.run_id(job), world.run_id(job, 2)]


def test_attempt_that_reads_images_hangs_only_if_their_number_stands_still(world: World) -> None:
    job = world.start_job()
    for images in range(0, 400_000, 40_000):  # more than an hour before the first step
        stands_still(world, job, 400, {"images_read": images, "images_total": 400_000})
    assert world.status(job) == JobStatus.RUNNING
    progress = world.job(job).progress
    assert progress == {"images_read": 360_000, "images_total": 400_000}
    stands_still(world, job, 2000, progress)
    error = failure(world.attempt(job))
    assert error["type"] == "hang"


def stands_still(
    world: World, job: str, seconds: int, progress: dict[str, Any] | None = None
) -> None:
    """Let an attempt send heartbeats with the same progress."""
    for _ in range(0, seconds, 100):
        world.main_round(100)
        if world.status(job) != JobStatus.RUNNING:
            return
        world.worker_sends_heartbeat(job, progress=progress)


def test_training_whose_rank_cannot_reach_api_continues(world: World) -> None:
    """The driver, on another node, reaches the API but does not know the progress."""
    job = world.start_job()
    world.worker_sends_heartbeat(job, progress={"step": 1})
    stands_still(world, job, 2000)
    assert world.status(job) == JobStatus.RUNNING


def test_driver_whose_ranks_never_start_counts_as_hanging(world: World) -> None:
    job = world.start_job()
    stands_still(world, job, 2000)
    assert world.status(job) == JobStatus.RETRY_WAIT


@pytest.mark.parametrize(
    ("known", "first_heartbeat"),
    [
        pytest.param(None, None, id="the driver's as it starts"),
        pytest.param({"step": 1}, {"step": 1}, id="rank 0's as it trains, as before it slept"),
        pytest.param({"step": 1}, None, id="the driver's as it trains", marks=pytest.mark.slow),
        pytest.param(None, {"step": 1}, id="rank 0's as it starts", marks=pytest.mark.slow),
    ],
)
def test_outage_does_not_count_as_time_without_progress(
    world: World, known: dict[str, Any] | None, first_heartbeat: dict[str, Any] | None
) -> None:
    """After an API outage or sleep of the machine, the first heartbeat must not end the attempt."""
    job = world.start_job()
    world.worker_sends_heartbeat(job, progress=known)
    for _ in range(20):
        world.main_round(100)
    world.worker_sends_heartbeat(job, progress=first_heartbeat)
    world.tick()
    assert world.status(job) == JobStatus.RUNNING
    # A hang after the silence is detected within the usual time.
    stands_still(world, job, 2000, {"step": 1})
    assert world.status(job) == JobStatus.RETRY_WAIT


def test_suspended_time_does_not_count_to_time_limit(world: World) -> None:
    job = world.start_job(max_hours=1.0)
    world.worker_trains(job, 1800)
    world.tick(200_000)
    world.worker_sends_heartbeat(job, progress={"step": 1})
    world.worker_trains(job, 1600)
    assert world.status(job) == JobStatus.RUNNING
    world.tick(100)
    assert world.status(job) == JobStatus.PAUSING


@pytest.mark.parametrize("ends", ["by itself", "after its report"])
def test_slow_log_copy_does_not_delay_dispatcher(
    world: World, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """Ray's head sends the whole log again for each part."""
    job, other = world.add_job(workers=2, max_restarts=0), world.add_job()
    world.tick()
    world.worker_starts(job)
    if ends == "after its report":
        error = {"type": "x", "message": "y"}
        world.worker_finishes(job, "failed", error=error, retry=Retry.NEVER)
    logs = world.executor.logs

    def slow(*arguments: Any) -> LogPiece:
        world.ahead += timedelta(seconds=40)
        return logs(*arguments)

    monkeypatch.setattr(world.executor, "logs", slow)
    world.executor.kill(world.run_id(job), signal.SIGSEGV)
    world.tick(times=2)
    assert world.status(other) == JobStatus.STARTING


def test_slow_log_copy_keeps_lease(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise two dispatchers would alternate, and neither would reach the log's end."""
    job = world.start_job()
    first, second = world.dispatcher, world.restart("second")
    logs, busy = world.executor.logs, False

    def slow(*arguments: Any) -> LogPiece:
        nonlocal busy
        world.ahead += timedelta(seconds=20)
        if not busy:  # the second one's own log calls must not recurse
            busy = True
            second.tick()
            busy = False
        return logs(*arguments)

    monkeypatch.setattr(world.executor, "logs", slow)
    world.executor.kill(world.run_id(job))
    world.ahead += timedelta(seconds=2)
    first.tick()
    assert world.status(job) == JobStatus.RETRY_WAIT


def test_attempts_are_finalized_after_long_downtime(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.start_job()
    world.worker_finishes(job, "succeeded")
    world.executor.end(world.run_id(job), 0, "the last words")
    world.ahead += timedelta(days=9)
    world.restart()
    world.tick()
    assert "the last words" in world.log(job)
    # The next dispatcher must not finalize it again.
    requests: list[str] = []
    world.restart()
    monkeypatch.setattr(world.executor, "status", requests.append)
    world.tick()
    assert requests == []


@pytest.mark.parametrize("saves", [True, False])
def test_job_at_its_time_limit_saves_and_is_paused(world: World, saves: bool) -> None:
    job = world.start_job(max_hours=0.25, max_restarts=0)
    world.worker_trains(job, 800)
    assert world.status(job) == JobStatus.RUNNING
    world.tick(110)
    assert world.status(job) == JobStatus.PAUSING
    assert world.job(job).desired == Desired.RUN, "no user requested it"
    assert world.worker_sends_heartbeat(job, progress={"step": 4000}) == Desired.PAUSE
    checkpoint = world.add_checkpoint(job, 1, step=4000)
    world.tick()
    assert world.executor.is_running(world.run_id(job))
    if saves:
        world.end_job(job, "paused")
    else:
        ranks_hang(world, job, 50)
    world.tick()
    assert world.status(job) == JobStatus.PAUSED
    assert not world.executor.is_running(world.run_id(job))
    for error in (world.job(job).error, world.attempt(job).error):
        assert error is not None
        assert error["type"] == "max-hours"
    assert ("had to be killed" in world.events(job)[-1]) != saves
    world.tick(1000)
    assert world.status(job) == JobStatus.PAUSED

    with world.database.write() as session:
        assert lifecycle.change_time_limit(session, session.get_one(Job, job), 0.5)
    world.resume(job)
    world.tick()
    world.worker_starts(job, 2)
    assert world.attempt(job, 2).resume_checkpoint_id == checkpoint
    assert world.job(job).error is None
    world.worker_trains(job, 500, number=2)
    assert world.status(job) == JobStatus.RUNNING
    with world.database.read() as session:
        ends = [each.ends_by - world.now() for each in scheduling.running(session, world.now())]
    assert timedelta() < ends[0] < timedelta(minutes=12), "admission uses the changed limit"
    world.worker_trains(job, 300, number=2)
    world.tick(110)
    assert world.status(job) == JobStatus.PAUSING


def test_shutdown_lets_attempts_save_and_queues_their_jobs(world: World) -> None:
    training, starting, waiting = (world.add_job(max_restarts=0) for _ in range(3))
    world.tick()
    for job in (training, starting):
        world.worker_starts(job)
    world.worker_sends_heartbeat(training, progress={"step": 7})
    world.dispatcher.begin_shutdown()
    world.tick()
    assert world.worker_sends_heartbeat(training, progress={"step": 8}) == Desired.PAUSE
    assert world.worker_sends_heartbeat(starting) == Desired.RUN, "it has nothing to save"
    checkpoint = world.add_checkpoint(training, 1, step=8)
    world.end_job(training, "paused")
    assert world.status(training) == JobStatus.QUEUED
    world.tick(times=3)
    assert len(world.executor.submitted) == 2, (
        "nothing is started in a service that is being stopped"
    )
    assert world.status(starting) == JobStatus.RUNNING
    world.restart()
    world.tick()
    assert world.attempt(training, 2).resume_checkpoint_id == checkpoint
    assert world.job(training).restarts == 0
    assert (world.attempt(training).state, world.attempt(training).error) == ("paused", None)
    assert world.status(waiting) == JobStatus.QUEUED


def test_run_waits_for_checkpoints_as_long_as_it_may(world: World) -> None:
    job = world.start_job()
    world.worker_sends_heartbeat(job, progress={"step": 7})
    stop = threading.Event()
    stop.set()
    # The clock of the world stands still: the lease is kept.
    world.dispatcher.run(stop, interval=0.01, save_seconds=lambda: 0.1)
    assert world.attempt(job).stop_reason == "shutdown"
    assert world.executor.is_running(world.run_id(job))
    world.worker_finishes(job, "paused")
    began = time.monotonic()
    world.restart().run(stop, interval=0.01, save_seconds=lambda: 600.0)
    assert time.monotonic() - began < 60, "nothing is left to save"


@pytest.mark.parametrize("ends", ["cancelled", "lost"])
def test_stop_at_the_time_limit_yields_to_other_ends(world: World, ends: str) -> None:
    job = world.start_job(max_hours=0.1)
    world.worker_trains(job, 360)
    world.tick(10)
    assert world.status(job) == JobStatus.PAUSING
    if ends == "cancelled":
        world.cancel(job)
        assert world.worker_sends_heartbeat(job) == Desired.CANCEL
        world.worker_finishes(job, "paused")
        assert world.status(job) == JobStatus.CANCELLED
        return
    world.executor.end(world.run_id(job), 1)
    world.tick()
    assert world.status(job) == JobStatus.PAUSED
    assert world.job(job).restarts == 1


def test_only_time_of_attempts_counts_to_time_limit(world: World) -> None:
    job = world.start_job(max_hours=1.0)
    world.worker_trains(job, 1800)
    world.pause(job)
    world.end_job(job, "paused")
    world.tick(100_000)  # paused, perhaps with the machine off
    world.resume(job)
    world.tick()
    world.worker_starts(job, 2)
    world.worker_trains(job, 1700, number=2)
    assert world.status(job) == JobStatus.RUNNING
    world.tick(200)
    assert world.status(job) == JobStatus.PAUSING


def test_submission_refused_by_ray_fails_job_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise SubmissionRefused("no such thing")

    monkeypatch.setattr(world.executor, "submit", refuse)
    job = world.add_job()
    world.tick()
    assert world.status(job) == JobStatus.FAILED
    assert world.events(job)[-1] == "Job failed: Ray refuses the job: no such thing"


def test_failing_store_does_not_hold_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    class StoreError(Exception):
        pass

    def broken(*_: object) -> None:
        raise StoreError("503 Slow Down")

    job, other = world.add_job(workers=2), world.add_job(workers=2)
    world.tick()
    world.worker_starts(job)
    monkeypatch.setattr("service.artifacts.storage.Storage.folders", broken)
    monkeypatch.setattr("service.artifacts.attempt_log.AttemptLog.append", broken)
    world.executor.write_log(world.run_id(job), b"a line\n")
    world.tick(60)
    world.cancel(job)
    ranks_hang(world, job, 50)  # the broken log must not prevent the stop
    assert not world.executor.is_running(world.run_id(job))
    world.tick(times=2)
    assert world.status(job) == JobStatus.CANCELLED
    assert world.status(other) == JobStatus.STARTING
