"""Preemption: minimal sets of victims of lower rank, which save and return to the queue."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.db.models import Attempt
from service.runs.endings import Retry
from service.scheduling.admission import Queued, Running, occupied
from service.scheduling.nodes import Node
from service.scheduling.packing import Demand, Worker
from service.scheduling.preemption import MIN_RUNTIME, Candidate, Rank, victims
from service.states import JobStatus
from tests.support.dispatcher_world import World

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
LONG_AGO = BEGAN - MIN_RUNTIME
NODES = [Node(str(n), "", 4, 4, 0, 0) for n in range(2)]


@st.composite
def candidates(draw: st.DrawFn) -> list[Candidate]:
    """Jobs on two nodes with four GPUs each; of each, the node may be unknown."""
    free, found = [4, 4], []
    for number in range(draw(st.integers(0, 6))):
        node, gpus = draw(st.integers(0, 1)), draw(st.integers(1, 3))
        if free[node] < gpus:
            continue
        free[node] -= gpus
        demand = Demand(gpus, Worker(1, 1))
        placement = draw(st.sampled_from([None, {str(node): gpus}]))
        held = Running(demand, BEGAN + timedelta(days=1), placement=placement)
        rank = Rank(draw(st.booleans()), draw(st.integers(-1, 1)))
        age = timedelta(minutes=draw(st.sampled_from([1, 10, 60])))
        found.append(Candidate(str(number), 1, rank, BEGAN - age, BEGAN - age, held))
    return found


def fits(job: Queued, held: list[Candidate]) -> bool:
    return occupied(NODES, [each.holds for each in held]).fits(job.demand)


@given(
    candidates(),
    st.builds(Demand, st.integers(1, 8), st.builds(Worker, st.integers(1, 2), st.just(1))),
    st.integers(-1, 1),
    st.booleans(),
    st.sampled_from(["off", "low", "priority"]),
)
def test_victims_are_of_lower_rank_suffice_and_are_all_needed(
    running: list[Candidate], demand: Demand, priority: int, preemptible: bool, mode: str
) -> None:
    job = Queued("new", 0, demand, timedelta(hours=1), priority=priority, preemptible=preemptible)
    chosen = victims(NODES, [], running, job, BEGAN, mode)  # type: ignore[arg-type]
    rank = Rank(not preemptible, priority)
    assert all(each.rank.gives_way_to(rank, mode) for each in chosen)  # type: ignore[arg-type]
    assert all(each.rank < rank and BEGAN - each.started_at >= MIN_RUNTIME for each in chosen)
    if chosen:
        left = [each for each in running if each not in chosen]
        assert fits(job, left)
        assert not any(fits(job, [*left, each]) for each in chosen)
    elif not fits(job, running):
        eligible = [
            each
            for each in running
            if each.rank.gives_way_to(rank, mode)  # type: ignore[arg-type]
            and BEGAN - each.started_at >= MIN_RUNTIME
        ]
        assert not fits(job, [each for each in running if each not in eligible])


def holder(name: str, priority: int, saved: datetime = LONG_AGO) -> Candidate:
    held = Running(Demand(4, Worker(1, 1)), BEGAN + timedelta(days=1), placement={name: 4})
    return Candidate(name, 1, Rank(False, priority), saved, LONG_AGO, held)


def test_lowest_priority_then_least_unsaved_work_gives_way_first() -> None:
    job = Queued("new", 0, Demand(4, Worker(1, 1)), timedelta(hours=1))
    by_priority = [holder("0", 1), holder("1", 0)]
    assert [each.job_id for each in victims(NODES, [], by_priority, job, BEGAN, "low")] == ["1"]
    by_work = [holder("0", 0), holder("1", 0, saved=BEGAN)]
    assert [each.job_id for each in victims(NODES, [], by_work, job, BEGAN, "low")] == ["1"]


def train(world: World, job: str, number: int = 1) -> None:
    world.tick()
    assert world.status(job) == JobStatus.STARTING
    world.worker_starts(job, number)
    world.worker_trains(job, MIN_RUNTIME.total_seconds() + 100, number)


def test_preemptible_job_saves_gives_way_and_runs_again(world: World) -> None:
    low = world.add_job(workers=2, preemptible=True, priority=9)
    train(world, low)
    high = world.add_job(workers=2)
    world.tick()
    assert world.worker_sends_heartbeat(low) == "pause"
    assert world.attempt(low).stop_reason == "preempted"
    world.worker_finishes(low, "paused")
    world.executor.end(world.run_id(low), 0)
    world.tick(times=2)
    assert (world.status(low), world.status(high)) == (JobStatus.QUEUED, JobStatus.STARTING)
    assert world.job(low).restarts == 0
    world.worker_starts(high)
    world.worker_finishes(high, "succeeded")
    world.executor.end(world.run_id(high), 0)
    world.tick(times=2)
    assert world.status(low) == JobStatus.STARTING


def test_no_job_gives_way_that_is_not_preemptible_or_has_just_started(world: World) -> None:
    low = world.add_job(workers=1, priority=-5)
    young = world.add_job(workers=1, preemptible=True)
    world.tick()
    for job in (low, young):
        world.worker_starts(job)
        world.worker_sends_heartbeat(job, progress={"step": 1})
    world.add_job(workers=2, priority=5)
    world.tick()
    assert [world.attempt(job).stop_reason for job in (low, young)] == [None, None]


def test_job_gives_way_to_the_second_job_with_a_reservation(world: World) -> None:
    world.executor.nodes = [
        Node("a", "10.0.0.1", 1, 0, 0, 0, labels={"zone": "a"}),
        Node("b", "10.0.0.2", 1, 0, 0, 0, labels={"zone": "b"}),
    ]
    stays = world.add_job(node_labels={"zone": "a"})
    low = world.add_job(preemptible=True, node_labels={"zone": "b"})
    world.tick()
    for job, node in ((stays, "a"), (low, "b")):
        world.worker_starts(job)
        world.worker_reports_placement(job, **{node: 1})
        world.worker_sends_heartbeat(job, progress={"step": 1})
    world.worker_trains(low, MIN_RUNTIME.total_seconds() + 100)
    world.add_job(node_labels={"zone": "a"})
    world.add_job(node_labels={"zone": "b"})
    world.tick()
    assert world.attempt(stays).stop_reason is None
    assert world.attempt(low).stop_reason == "preempted"


def preempted(world: World) -> str:
    """Return a job that is to give way."""
    low = world.add_job(workers=2, preemptible=True, max_restarts=0)
    train(world, low)
    world.add_job(workers=2)
    world.tick()
    assert world.worker_sends_heartbeat(low) == "pause"
    return low


@pytest.mark.parametrize("retry", [item for item in Retry if item != Retry.FREE])
def test_failure_while_giving_way_uses_no_restart(world: World, retry: Retry) -> None:
    """An error that would repeat ends the job."""
    low = preempted(world)
    error = {"type": "OSError", "message": "The disk is full"}
    world.worker_finishes(low, "failed", error=error, retry=retry)
    expected = JobStatus.FAILED if retry == Retry.NEVER else JobStatus.RETRY_WAIT
    assert world.status(low) == expected
    assert (world.job(low).restarts, world.job(low).infrastructure_failures) == (0, 0)


def test_reason_of_a_newer_version_is_a_request_to_save(world: World) -> None:
    job = world.add_job(max_restarts=0)
    train(world, job)
    with world.database.write() as session:
        attempt = session.get_one(Attempt, (job, 1))
        attempt.stop_reason, attempt.stop_requested_at = "eclipse", world.now()
    assert world.worker_sends_heartbeat(job) == "pause"
    other = world.add_job()
    world.tick()
    assert world.status(other) == JobStatus.STARTING, "it blocks no other job"
    world.cancel(other)
    world.worker_finishes(job, "paused")
    assert world.status(job) == JobStatus.QUEUED
    assert world.events(job)[-1] == "Job queued again. Attempt 1 was stopped by the service"
    world.executor.end(world.run_id(job), 0)
    world.tick(times=2)
    assert (world.status(job), world.job(job).restarts) == (JobStatus.STARTING, 0)


def test_no_job_gives_way_for_room_that_is_kept_for_another(world: World) -> None:
    """An elastic job waits some minutes for its lost node, and two others are kept for it."""
    nodes = [
        Node(name, "", 1, 0, 0, 0, labels={"kind": name[0]}) for name in ("e1", "e2", "e3", "r")
    ]
    world.executor.nodes = nodes
    elastic = world.add_job(workers=3, min_workers=2, node_labels={"kind": "e"})
    low = world.add_job(preemptible=True, node_labels={"kind": "r"})
    world.tick()
    train(world, low)
    world.worker_starts(elastic)
    world.pause(elastic)
    world.worker_finishes(elastic, "paused")
    world.executor.end(world.run_id(elastic), 0)
    world.tick()
    world.executor.nodes = [node for node in nodes if node.id != "e3"]
    world.tick(60)
    world.resume(elastic)
    wide = world.add_job(workers=3)
    world.tick()
    assert "It starts with 2 once" in world.events(elastic, "waiting")[-1]
    assert world.status(wide) == JobStatus.QUEUED
    assert world.worker_sends_heartbeat(low) == "run"
