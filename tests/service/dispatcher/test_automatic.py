"""The numbers for "auto" in `resources`: pure rules, admission with them, and what attempts keep."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from service.db.models import Event
from service.events.levels import event_level
from service.scheduling.admission import Queued, decide
from service.scheduling.automatic import (
    MOST_CPUS,
    MOST_CPUS_WITH_GPU,
    NOTHING,
    Automatic,
    choose,
    has_gpus,
)
from service.scheduling.nodes import ANY_NODE, GPU_TYPE_LABEL, Cluster, Node, NodeChoice
from service.scheduling.packing import Demand, Room, Worker, most_places
from service.scheduling.quota import NO_QUOTA, Quota
from service.settings import NodeShape
from service.states import JobStatus
from tests.support.dispatcher_world import World

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
BOTH = Automatic(cpus=True, gpus=True)


def nodes(*sizes: tuple[float, float]) -> list[Node]:
    return [
        Node(f"n{index}", f"10.0.0.{index}", cpus, gpus, 0, 0, total_memory=2**40)
        for index, (cpus, gpus) in enumerate(sizes)
    ]


def demand(workers: int = 1, *, memory: int = 0, choice: NodeChoice = ANY_NODE) -> Demand:
    return Demand(workers, Worker(1, 0, memory), choice)


def chosen(wanted: Demand, automatic: Automatic, there: list[Node]) -> Worker:
    """Return the worker of a job that starts now."""
    job = Queued("a", 0, wanted, timedelta(hours=1), automatic=automatic)
    (decision,) = decide(Cluster(tuple(there)), [], [job], BEGAN)
    return decision.job.demand.worker


@pytest.mark.parametrize(
    ("sizes", "workers", "expected"),
    [
        # Without GPUs: all of a node, or its part for each of the workers on it.
        ([(2, 0)], 1, (2, 0)),
        ([(8, 0)], 3, (2, 0)),
        ([(8, 0), (8, 0)], 4, (4, 0)),
        ([(8, 0), (8, 0)], 1, (8, 0)),
        ([(8, 0), (16, 0)], 1, (8, 0)),
        ([(4, 0), (16, 0)], 1, (16, 0)),
        ([(4, 0), (16, 0)], 6, (3, 0)),
        ([(7.5, 0)], 1, (7, 0)),
        ([(128, 0)], 1, (MOST_CPUS, 0)),
        # With GPUs: a node's CPUs by its GPUs, however many workers there are.
        ([(32, 4)], 1, (8, 1)),
        ([(32, 4)], 4, (8, 1)),
        ([(64, 8), (8, 2)], 1, (4, 1)),
        ([(128, 8), (2, 1)], 8, (16, 1)),
        ([(128, 8), (2, 1)], 9, (2, 1)),
        ([(96, 1)], 1, (MOST_CPUS_WITH_GPU, 1)),
        ([(4, 8)], 1, (1, 1)),
        # A head without room for workers, and one without GPUs, say nothing.
        ([(0, 0), (16, 2)], 1, (8, 1)),
        ([(2, 0), (16, 2)], 1, (8, 1)),
        # Too few nodes: no fewer workers fit than with one CPU each.
        ([(4, 0)], 8, (1, 0)),
        ([(16, 2)], 4, (8, 1)),
        ([], 2, (1, 0)),
    ],
)
def test_share_of_nodes(
    sizes: list[tuple[float, float]], workers: int, expected: tuple[int, int]
) -> None:
    assert chosen(demand(workers), BOTH, nodes(*sizes)) == Worker(*expected, 0)


def test_numbers_of_the_spec_stay() -> None:
    fixed, cluster = Demand(1, Worker(3, 0)), nodes((32, 4))
    assert chosen(fixed, NOTHING, cluster) == fixed.worker
    assert chosen(fixed, Automatic(gpus=True), cluster) == Worker(3, 1)
    # Without a GPU it leaves their part of the CPUs to the GPUs.
    assert chosen(demand(), Automatic(cpus=True), cluster) == Worker(8, 0)
    assert chosen(demand(), Automatic(cpus=True), nodes((32, 4), (6, 0))) == Worker(6, 0)
    # No node has a GPU for a worker with so many CPUs.
    large = Demand(1, Worker(48, 0))
    assert chosen(large, Automatic(gpus=True), nodes((32, 4), (64, 0))) == Worker(48, 0)


def test_only_nodes_that_the_job_may_use_count() -> None:
    small, large = nodes((4, 1), (64, 0))
    small = replace(small, labels={GPU_TYPE_LABEL: "T4", "rack": "a"})
    large = replace(large, labels={"rack": "b"})
    rack_b = demand(choice=NodeChoice(labels=frozenset({("rack", "b")})))
    without = demand(choice=NodeChoice(excluded=frozenset({"n0"})))
    for wanted in (rack_b, without):
        assert chosen(wanted, BOTH, [small, large]) == Worker(64, 0)
    # A type of GPU is a request for one.
    typed = demand(choice=NodeChoice(gpu_type="H100"))
    assert chosen(typed, BOTH, [small, large]).gpus == 1


def test_same_node_and_memory_limit_the_workers_of_a_node() -> None:
    together = demand(4, choice=NodeChoice(same_node=True))
    assert chosen(together, BOTH, nodes((2, 0), (8, 0), (8, 0))) == Worker(2, 0)
    (node,) = nodes((16, 0))
    cluster = [replace(node, total_memory=10), replace(node, id="b", total_memory=1)]
    assert chosen(demand(2, memory=5), BOTH, cluster) == Worker(8, 0, 5)


def test_job_waits_for_gpus_that_are_drained_or_in_use_but_not_for_cores() -> None:
    small, large, gpu = nodes((4, 0), (16, 0), (16, 2))
    assert chosen(demand(), BOTH, [replace(small, drained=True), large]).cpus == 16
    assert chosen(demand(), BOTH, [small, replace(gpu, drained=True)]).gpus == 1
    job = Queued("a", 0, demand(), timedelta(hours=1), automatic=BOTH)
    (decision,) = decide(Cluster((small, gpu)), [], [job], BEGAN, {gpu.id: Room(0, 2)})
    assert (decision.waits_for, decision.job.demand.worker.gpus) == ("room", 1)
    (decision,) = decide(Cluster((large,)), [], [job], BEGAN, {large.id: Room(3, 0)})
    assert (decision.starts, decision.job.demand.worker) == (True, Worker(13, 0))


def test_largest_cluster_has_gpus_for_jobs_without_labels() -> None:
    limit = (NodeShape(2, 16, 4), NodeShape(1, 64, 0))
    assert has_gpus(demand(memory=5), nodes((2, 0)), limit)
    assert not has_gpus(Demand(1, Worker(17, 0)), [], limit)
    assert not has_gpus(demand(), [], (NodeShape(1, 64, 0),))
    assert not has_gpus(demand(choice=NodeChoice(labels=frozenset({("a", "b")}))), [], limit)
    assert not has_gpus(demand(), nodes((2, 0)), "current")


sizes = st.tuples(st.integers(0, 200) | st.floats(0, 9), st.integers(0, 9))
choices = st.builds(
    NodeChoice,
    gpu_type=st.none(),
    labels=st.just(frozenset()),
    excluded=st.sets(st.sampled_from(["n0", "n1"])).map(frozenset),
    same_node=st.booleans(),
)


@given(
    st.lists(sizes, max_size=5),
    st.integers(1, 12),
    st.sampled_from([0, 2**38, 2**39]),
    choices,
    st.builds(Automatic, st.booleans(), st.booleans()),
    st.booleans(),
)
def test_whatever_fits_with_one_cpu_fits_with_the_share(
    shapes: list[tuple[float, float]],
    workers: int,
    memory: int,
    choice: NodeChoice,
    automatic: Automatic,
    gpus: bool,
) -> None:
    cluster, wanted = nodes(*shapes), demand(workers, memory=memory, choice=choice)
    gpus = gpus and has_gpus(wanted, cluster)
    share = choose(wanted, automatic, cluster, gpus=gpus)
    assert share._replace(worker=wanted.worker) == wanted
    assert share.worker.gpus == int(automatic.gpus and gpus)
    least = share._replace(worker=share.worker._replace(cpus=1))
    assert bool(most_places(cluster, share)) == bool(most_places(cluster, wanted))
    assert most_places(cluster, share) >= min(most_places(cluster, least), workers)
    limit = MOST_CPUS_WITH_GPU if share.worker.gpus else MOST_CPUS
    assert 1 <= share.worker.cpus <= limit


def queued(name: str, **changes: Any) -> Queued:
    job = Queued(name, 0, demand(), timedelta(hours=1), automatic=BOTH)
    return replace(job, **changes)


def test_admission_decides_with_the_numbers() -> None:
    cluster = Cluster(tuple(nodes((8, 2))))
    first, second, third = decide(cluster, [], [queued("a"), queued("b"), queued("c")], BEGAN)
    assert first.starts
    assert second.starts
    assert first.job.demand.worker == Worker(4, 1)
    assert third.waits_for == "room"
    assert "4 CPUs and 1 GPU" in third.message
    quota: dict[str, Any] = {"account_id": "tok_1", "quota": Quota(max_gpus=0)}
    (decision,) = decide(cluster, [], [queued("a", **quota)], BEGAN)
    assert decision.starts
    assert decision.job.demand.worker == Worker(4, 0)
    quota["quota"] = replace(NO_QUOTA, max_gpus=1)
    first, second = decide(cluster, [], [queued("a", **quota), queued("b", **quota)], BEGAN)
    assert first.starts
    assert second.waits_for == "quota"


AUTO: dict[str, Any] = {"cpus_per_worker": "auto", "gpus_per_worker": "auto"}


def numbers(world: World, job: str) -> tuple[Any, ...]:
    """Return what is stored of a job: CPUs and GPUs of a worker, and the precision."""
    resolved = world.job(job).resolved
    resources, train = resolved["resources"], resolved["train"]
    return resources["cpus_per_worker"], resources["gpus_per_worker"], train.get("precision")


def start(world: World, job: str, number: int) -> None:
    world.tick(times=2)
    assert world.attempt(job, number)
    world.worker_starts(job, number)
    world.worker_sends_heartbeat(job, number, progress={"step": 7})


def stop(world: World, job: str, number: int) -> None:
    world.pause(job)
    world.tick()
    world.worker_finishes(job, "paused", number)
    world.executor.end(world.run_id(job, number), 0)
    world.tick()
    world.resume(job)


def test_first_attempt_decides_for_all_later_ones(world: World) -> None:
    """A job whose numbers do not fit any more says what it needs, and starts when a node has it."""
    large, small = nodes((8, 0), (4, 0))
    world.executor.nodes = [small]
    job = world.add_job(workers=2, **AUTO)
    other = world.add_job(workers=3, priority=1, **AUTO)
    world.tick()
    assert numbers(world, other) == (1, 0, "fp32")
    assert numbers(world, job) == ("auto", "auto", None)
    world.cancel(other)
    world.worker_finishes(other, "cancelled")
    world.executor.end(world.run_id(other), 0)
    world.executor.nodes = [large]
    start(world, job, 1)
    assert numbers(world, job) == (4, 0, "fp32")
    assert world.events(job)[1] == "Attempt 1 is starting (cpus_per_worker: 4; gpus_per_worker: 0)"
    world.executor.nodes = [*nodes((64, 8))]
    stop(world, job, 1)
    start(world, job, 2)
    assert numbers(world, job) == (4, 0, "fp32")
    world.executor.nodes = [replace(small, total_cpus=3)]
    stop(world, job, 2)
    world.tick(3600)
    assert world.status(job) == JobStatus.QUEUED
    assert world.events(job, "waiting")[-1] == (
        "Waiting for more machines: each worker needs 4 CPUs on one node, and the largest that the job may use has 3. "
        "It starts once there is a larger one; to train on what there is, clone it with resources.cpus_per_worker: 3"
    )
    world.executor.nodes = [large]
    start(world, job, 3)


def test_gpus_that_join_before_the_first_attempt_decide_the_precision(world: World) -> None:
    world.executor.nodes = nodes((4, 0))
    full = world.add_job(cpus_per_worker=4)
    job = world.add_job(**AUTO)
    world.tick()
    assert (world.status(full), world.status(job)) == (JobStatus.STARTING, JobStatus.QUEUED)
    world.worker_starts(full)
    world.worker_reports_placement(full, 1, n0=1)
    world.executor.nodes = nodes((4, 0), (8, 1))
    start(world, job, 1)
    assert numbers(world, job) == (8, 1, "bf16")
    world.executor.nodes = nodes((4, 0), (8, 0))
    stop(world, job, 1)
    world.tick()
    assert "clone it with resources.gpus_per_worker: 0" in world.events(job, "waiting")[-1]


def test_first_attempt_without_gpus_tells_so(world: World) -> None:
    world.executor.nodes = nodes((4, 1))
    job = world.add_job(token_id=world.add_token(max_gpus=0), **AUTO)
    world.tick()
    (why,) = world.events(job, "no_gpus")
    assert level_of_no_gpus(world, job) == "warning"
    assert "because max_gpus of its token or tenant is 0. Once that is raised" in why
    world.worker_finishes(job, "succeeded")
    world.executor.end(world.run_id(job), 0)
    world.executor.nodes = nodes((8, 0))
    job = world.add_job(**AUTO)
    start(world, job, 1)
    assert world.events(job, "no_gpus") == [
        "All attempts of the job train on CPUs, because no node that it may use had a GPU for its ranks when it was "
        "submitted, or has one now. Once there are GPUs, clone it with resources.gpus_per_worker: 1 and "
        "train.precision: auto to train on them"
    ]
    assert level_of_no_gpus(world, job) == "info", "no node has a GPU"


def level_of_no_gpus(world: World, job_id: str) -> str:
    with world.database.read() as session:
        query = select(Event.data).where(Event.job_id == job_id, Event.type == "no_gpus")
        return event_level("no_gpus", session.scalars(query).one())
