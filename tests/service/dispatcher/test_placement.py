"""Where jobs start: chosen nodes, drained nodes, and fewer nodes than an elastic job asks for."""

from typing import Any

import pytest

from dasl_core.spec import Resources
from service import lifecycle
from service.db.models import Drain, Job
from service.runs.endings import Retry
from service.scheduling import repository as scheduling
from service.scheduling.admission import SHRINK_AFTER
from service.scheduling.nodes import ALL_NODES, GPU_TYPE_LABEL, Node
from service.scheduling.repository import AVOID_FOR
from service.scheduling.repository.resources import time_used
from service.states import Desired, JobStatus
from tests.support.dispatcher_world import World
from tests.support.statements import plan_of, recorded_statements


def node(name: str, cpus: float = 2, gpus: float = 0, **properties: Any) -> Node:
    return Node(name, f"10.0.0.{ord(name)}", cpus, gpus, 0, 0, **properties)


def drain(world: World, name: str, *, save: bool = True) -> None:
    with world.database.write() as session:
        row = Drain(node=name, save=save, reason="", tenant="default", created_at=world.now())
        session.add(row)


def undrain(world: World, name: str) -> None:
    with world.database.write() as session:
        session.delete(session.get_one(Drain, name))


def train(world: World, job: str, number: int = 1, **ranks: int) -> None:
    """Let an attempt start on some nodes and report a step."""
    world.worker_starts(job, number)
    world.worker_reports_placement(job, number, **ranks)
    world.worker_sends_heartbeat(job, number, progress={"step": 7})


def stop(world: World, job: str, number: int = 1) -> None:
    world.worker_finishes(job, "paused", number)
    world.executor.end(world.run_id(job, number), 0)


def test_job_waits_for_a_node_of_its_gpu_type(world: World) -> None:
    world.executor.nodes = [node("a", gpus=1, labels={GPU_TYPE_LABEL: "A100"})]
    job = world.add_job(gpus_per_worker=1, gpu_type="H100")
    other = world.add_job(gpus_per_worker=1)
    world.tick()
    assert (world.status(job), world.status(other)) == (JobStatus.QUEUED, JobStatus.STARTING)
    assert world.events(job, "waiting") == [
        "Waiting for more machines: resources.gpu_type: no node has GPUs of type H100; "
        "the cluster has A100 (1 node)"
    ]
    world.worker_starts(other)
    world.worker_reports_placement(other, a=1)
    world.executor.nodes.append(node("b", gpus=1, labels={GPU_TYPE_LABEL: "H100"}))
    world.tick()
    assert world.status(job) == JobStatus.STARTING


def test_attempts_on_drained_node_save_and_start_elsewhere(world: World) -> None:
    world.executor.nodes = [node("a"), node("b", cpus=1)]
    moved, stays = world.add_job(), world.add_job()
    world.tick()
    train(world, moved, a=1)
    train(world, stays, b=1)
    drain(world, "10.0.0.97")
    world.tick()
    assert world.worker_sends_heartbeat(moved, progress={"step": 8}) == Desired.PAUSE
    assert world.worker_sends_heartbeat(stays, progress={"step": 8}) == Desired.RUN
    checkpoint = world.add_checkpoint(moved, 1, step=8)
    stop(world, moved)
    world.tick(times=3)
    assert world.status(moved) == JobStatus.QUEUED, "the node that is left is full"
    assert world.job(moved).restarts == 0
    assert "Job queued again. Attempt 1 ended as a node of its ranks is drained" in world.events(
        moved
    )
    undrain(world, "10.0.0.97")
    world.tick()
    assert world.attempt(moved, 2).resume_checkpoint_id == checkpoint
    assert world.attempt(moved).stop_reason == "drain"


def test_drivers_of_attempts_leave_the_head_and_drained_nodes_alone(world: World) -> None:
    """Each attempt had five processes with 541 MB on the head: a head of 8 GB carried 12 attempts."""
    world.executor.nodes = [node("h", cpus=0, is_head=True), node("a"), node("b"), node("c")]
    drain(world, "c")
    job, dataset = world.add_job(), world.add_dataset()
    world.tick()
    assert world.executor.avoided[world.run_id(job)] == {"h", "c"}
    assert world.executor.avoided[world.run_id(dataset)] == frozenset()


def test_drivers_run_where_there_is_no_other_node(world: World) -> None:
    world.executor.nodes = [node("h", is_head=True)]
    job = world.add_job()
    world.tick()
    assert world.executor.avoided[world.run_id(job)] == frozenset()


def test_attempt_whose_driver_alone_is_on_a_drained_node_saves(world: World) -> None:
    world.executor.nodes = [node("a"), node("b")]
    job = world.add_job()
    world.tick()
    world.worker_starts(job)
    ranks = {"nodes": [{"id": "b", "address": "", "ranks": [0]}]}
    with world.database.write() as session:
        lifecycle.append_event(session, job, "placement", "", {"attempt": 1, "driver": "a"} | ranks)
    world.worker_sends_heartbeat(job, progress={"step": 7})
    drain(world, "a")
    world.tick()
    assert world.worker_sends_heartbeat(job, progress={"step": 8}) == Desired.PAUSE


def test_drain_without_saving_lets_attempts_run(world: World) -> None:
    running = world.add_job()
    world.tick()
    train(world, running, **{"node-1": 1})
    drain(world, "node-1", save=False)
    waiting = world.add_job()
    world.tick()
    assert world.worker_sends_heartbeat(running, progress={"step": 8}) == Desired.RUN
    assert world.events(waiting, "waiting") == [
        "Waiting for more machines: all nodes are drained, and get no new workers"
    ]


def test_drain_of_the_whole_cluster_stops_attempts_wherever_they_are(world: World) -> None:
    job = world.add_job()
    world.tick()
    world.worker_starts(job)
    drain(world, ALL_NODES)
    world.tick()
    assert world.worker_sends_heartbeat(job, progress={"step": 7}) == Desired.RUN, "nothing to save"
    world.tick()
    assert world.worker_sends_heartbeat(job, progress={"step": 8}) == Desired.PAUSE
    stop(world, job)
    world.tick(times=3)
    assert world.status(job) == JobStatus.QUEUED
    undrain(world, ALL_NODES)
    world.tick()
    assert world.status(job) == JobStatus.STARTING


def lose_node(world: World, job: str, number: int) -> None:
    """Remove node b, and fail the attempt that had ranks there."""
    world.executor.nodes = [node("a", cpus=4)]
    world.worker_finishes(job, "failed", number, error={"type": "node-died", "message": "gone"})
    world.executor.end(world.run_id(job, number), 1)
    world.tick(times=60)


@pytest.mark.slow
def test_elastic_job_goes_on_with_the_ranks_that_are_left(world: World) -> None:
    """Of a batch of 12, four ranks cannot be replaced by five; six ranks can."""
    world.executor.nodes = [node("a", cpus=4), node("b", cpus=2)]
    job = world.add_job(workers=6, min_workers=2)
    rigid = world.add_job(workers=6)
    world.tick()
    assert world.attempt(job).workers == 6
    train(world, job, a=4, b=2)
    checkpoint = world.add_checkpoint(job, 1, step=8)
    lose_node(world, job, 1)
    assert world.events(job, "waiting")[-1].endswith(
        "It starts with 4 once this has lasted for 5 minutes and there is room"
    )
    world.tick(SHRINK_AFTER.total_seconds())
    second = world.attempt(job, 2)
    assert (second.workers, second.resume_checkpoint_id) == (4, checkpoint)
    assert any("Attempt 2 is starting with 4 of 6 ranks" in each for each in world.events(job))
    assert "more machines" in world.events(rigid, "waiting")[-1]

    train(world, job, 2, a=4)
    world.executor.nodes.append(node("b", cpus=2))
    world.cancel(rigid)
    world.tick()
    assert world.attempt(job, 2).state == "running", "it grows with its next attempt only"
    world.pause(job)
    world.tick()
    stop(world, job, 2)
    world.resume(job)
    world.tick(times=3)
    assert world.attempt(job, 3).workers == 6


def test_elastic_job_waits_for_nodes_that_join_one_by_one(world: World) -> None:
    both = [node("a"), node("b")]
    world.executor.nodes = both
    job = world.add_job(workers=4, min_workers=1)
    world.tick()
    train(world, job, a=2, b=2)
    stop(world, job)
    for nodes, away in ((both[:1], False), (both[:1], True), (both[:1], False), (both, False)):
        world.executor.nodes, world.executor.away = nodes, away
        world.tick(SHRINK_AFTER.total_seconds() - 20)
        world.tick()
    assert world.attempt(job, 2).workers == 4


def test_elastic_job_goes_on_at_once_beside_drained_nodes(world: World) -> None:
    world.executor.nodes = [node("a"), node("b")]
    job = world.add_job(workers=4, min_workers=1)
    world.tick()
    train(world, job, a=2, b=2)
    drain(world, "b")
    world.tick()
    stop(world, job)
    world.tick(times=3)
    assert world.attempt(job, 2).workers == 2


def test_elastic_job_starts_first_with_all_its_ranks(world: World) -> None:
    job = world.add_job(workers=3, min_workers=1)
    world.tick()
    assert world.status(job) == JobStatus.QUEUED
    assert "more machines" in world.events(job, "waiting")[-1]


def demands(world: World) -> list[str]:
    """Return the demands that Ray's autoscaler was shown."""
    names = [name for name in world.executor.submitted if name.startswith("demand")]
    return [world.executor.output(name).strip() for name in names]


@pytest.mark.slow
def test_autoscaler_is_shown_what_runs_and_waits(world: World) -> None:
    """The cluster is scaled to its head, which has no CPUs."""
    world.settings.autoscale = True
    world.restart()
    world.executor.nodes = [node("a", cpus=0)]
    job = world.add_job(workers=2, gpus_per_worker=1, gpu_type="H100")
    world.tick(times=20)
    world.executor.nodes.append(node("b", gpus=2, labels={GPU_TYPE_LABEL: "H100"}))
    world.tick()
    assert world.status(job) == JobStatus.STARTING
    waiting = world.add_job(workers=3)
    world.tick(times=20)
    world.cancel(waiting)
    world.tick(times=20)
    gpu = '[2, {"CPU": 1, "GPU": 1}, {"ray.io/accelerator-type": "H100"}]'
    both = f'[{gpu}, [3, {{"CPU": 1}}, {{}}]]'
    assert demands(world) == [f"[{gpu}]", "[]", both, "[]"]


def test_number_of_workers_that_changes_after_the_decision_is_not_used(world: World) -> None:
    fixed, elastic = world.add_job(), world.add_job(min_workers=1)
    with world.database.write() as session:
        for job in (fixed, elastic):
            session.get_one(Job, job).workers = 2
    with world.database.write() as session:
        assert lifecycle.start_attempt(session, fixed, "a", workers=1) is None
        assert lifecycle.start_attempt(session, fixed, "b", workers=3) is None
        assert lifecycle.start_attempt(session, elastic, "c", workers=3) is None
    with world.database.write() as session:
        assert lifecycle.start_attempt(session, fixed, "d", workers=2) is not None
        assert lifecycle.start_attempt(session, elastic, "e", workers=1) is not None
    assert world.events(elastic)[-1] == "Attempt 1 is starting with 1 of 2 ranks"


def test_job_between_two_attempts_holds_what_the_last_one_had(world: World) -> None:
    job = world.add_job(workers=2, min_workers=1)
    with world.database.write() as session:
        lifecycle.start_attempt(session, job, "a", workers=1)
    world.worker_finishes(job, "failed", error={"message": "no"})
    assert world.status(job) == JobStatus.RETRY_WAIT
    with world.database.read() as session:
        (held,) = scheduling.running(session, world.now())
    assert held.demand.workers == 1


BROKEN = {"type": "RuntimeError", "message": "CUDA error: uncorrectable ECC error"}


def fail(world: World, job: str, number: int, *, steps: int = 0, **ranks: int) -> None:
    """Let an attempt start on some nodes and fail; wait for the next attempt."""
    world.worker_starts(job, number)
    world.worker_reports_placement(job, number, **ranks)
    if steps:
        world.add_metric(job, number, steps)
    world.worker_finishes(job, "failed", number, error=BROKEN, retry=Retry.UNLESS_REPEATED)
    world.executor.end(world.run_id(job, number), 1)
    world.tick(5, times=3)


def excluded(world: World, job: str, number: int) -> list[str]:
    with world.database.read() as session:
        avoided = scheduling.avoided_nodes(session, job, number)
        resources = Resources.model_validate(session.get_one(Job, job).resolved["resources"])
        return scheduling.excluded_nodes(session, resources, avoided)


def test_retry_avoids_the_node_where_the_last_attempt_failed_at_once(world: World) -> None:
    world.executor.nodes = [node("a"), node("b")]
    job = world.add_job()
    world.tick()
    fail(world, job, 1, a=1)
    assert world.status(job) == JobStatus.STARTING
    assert excluded(world, job, 2) == ["a"]
    with world.database.read() as session:
        (held,) = scheduling.running(session, world.now())
    assert held.demand.choice.excluded == {"a"}, "no other job may take the room on the other node"
    assert world.events(job)[-1] == (
        "Attempt 2 is starting. It avoids 10.0.0.97, where the last attempt failed before its first step"
    )
    fail(world, job, 2, b=1)
    assert world.status(job) == JobStatus.FAILED, "the same error on another node is the job's own"


def fail_beside_a_busy_node(world: World) -> tuple[str, str]:
    """Let a job fail at once on node a while another job uses node b; return the other one and the failed one."""
    world.executor.nodes = [node("a"), node("b")]
    other = world.add_job(workers=2)
    world.tick()
    train(world, other, b=2)
    job = world.add_job()
    world.tick()
    fail(world, job, 1, a=1)
    assert world.status(job) == JobStatus.QUEUED
    return other, job


def test_retry_waits_for_another_node_that_is_busy(world: World) -> None:
    other, job = fail_beside_a_busy_node(world)
    (waiting,) = world.events(job, "waiting")
    assert waiting.endswith(
        "It avoids a node on which its last attempt failed before its first step"
    )
    world.worker_finishes(other, "succeeded")
    world.executor.end(world.run_id(other), 0)
    world.tick(times=2)
    assert excluded(world, job, 2) == ["a"]


def test_retry_takes_the_node_where_it_failed_if_others_stay_busy(world: World) -> None:
    _, job = fail_beside_a_busy_node(world)
    world.tick(AVOID_FOR.total_seconds())
    assert (world.status(job), excluded(world, job, 2)) == (JobStatus.STARTING, [])


def test_retry_stays_on_the_only_node_that_can_hold_the_job(world: World) -> None:
    world.executor.nodes = [node("a"), node("b", cpus=1)]
    job = world.add_job(cpus_per_worker=2)
    world.tick()
    fail(world, job, 1, a=1)
    assert (world.status(job), excluded(world, job, 2)) == (JobStatus.STARTING, [])
    fail(world, job, 2, a=1)
    assert world.status(job) == JobStatus.FAILED


def test_error_on_the_node_of_the_last_attempt_is_not_repeated(world: World) -> None:
    world.executor.nodes = [node("a"), node("b")]
    job = world.add_job()
    world.tick()
    fail(world, job, 1, steps=3, a=1)
    assert excluded(world, job, 2) == [], "it may be an error of the job: its node trained"
    fail(world, job, 2, a=1)
    assert (world.status(job), excluded(world, job, 3)) == (JobStatus.STARTING, ["a"])


def test_attempt_that_found_no_room_does_not_forget_the_broken_node(world: World) -> None:
    world.executor.nodes = [node("a"), node("b")]
    job = world.add_job()
    world.tick()
    fail(world, job, 1, a=1)
    world.worker_starts(job, 2)
    world.worker_finishes(job, "failed", 2, error={"type": "no-room"}, retry=Retry.FREE)
    world.executor.end(world.run_id(job, 2), 1)
    world.tick(times=2)
    assert excluded(world, job, 3) == ["a"]


def test_attempts_that_find_no_room_are_not_repeated_at_once_for_ever(world: World) -> None:
    job = world.add_job()
    for number in (1, 2, 3):
        world.tick(5)
        world.tick()
        assert world.attempt(job, number).state == "submitted"
        world.worker_starts(job, number)
        world.worker_finishes(job, "failed", number, error={"type": "no-room"}, retry=Retry.FREE)
        world.executor.end(world.run_id(job, number), 1)
    world.tick(60)
    world.tick()
    assert world.status(job) == JobStatus.RETRY_WAIT
    assert "third in a row; retried in 120 s without using up a restart" in world.events(job)[-1]
    world.tick(60)
    world.tick()
    assert (world.status(job), world.job(job).restarts) == (JobStatus.STARTING, 0)


def test_attempts_that_train_before_they_find_no_room_are_repeated_at_once(world: World) -> None:
    job = world.add_job()
    for number in (1, 2, 3):
        world.tick(5)
        world.tick()
        world.worker_starts(job, number)
        world.add_metric(job, number, 10 * number)
        world.worker_finishes(job, "failed", number, error={"type": "no-room"}, retry=Retry.FREE)
        world.executor.end(world.run_id(job, number), 1)
    world.tick(5)
    world.tick()
    assert world.status(job) == JobStatus.STARTING


# SQLite only: PostgreSQL's planner uses statistics of the tables.
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_statements_of_a_round_do_not_read_the_runs_of_ended_jobs(world: World) -> None:
    """There may be a million."""
    jobs = [world.add_job() for _ in range(50)]
    with world.database.read() as session:
        with recorded_statements(world.database) as statements:
            time_used(session, jobs)
            scheduling.nodes_to_avoid(session, dict.fromkeys(jobs, 1))
        queries = [each for each in statements if "FROM runs" in each[0]]
        assert len(queries) == 2
        for query in queries:
            assert "(owner=?)" in plan_of(session, *query)[0], query
