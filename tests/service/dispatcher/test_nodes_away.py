"""Nodes that left the cluster a short time ago: in memory, stored, and in what jobs get for "auto"."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from service.db.models import ClusterSnapshot
from service.scheduling import repository as scheduling
from service.scheduling.admission import SHRINK_AFTER
from service.scheduling.nodes import GPU_TYPE_LABEL, Node
from service.scheduling.nodes_away import NodeAway, NodesAway
from service.states import JobStatus
from tests.support.dispatcher_world import World

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def node(name: str, cpus: float = 4, gpus: float = 0, address: str = "") -> Node:
    labels = {GPU_TYPE_LABEL: "H100"} if gpus else {}
    return Node(name, address or f"10.0.0.{ord(name)}", cpus, gpus, 0, 0, "", 1e9, 0, labels)


NODES = [node(name) for name in "abc"]


@given(st.lists(st.sets(st.sampled_from(range(3)), min_size=1), min_size=1, max_size=20))
def test_away_is_what_was_there_in_the_last_five_minutes(minutes: list[set[int]]) -> None:
    watched = NodesAway()
    for minute, present in enumerate(minutes):
        watched.update([NODES[n] for n in present], BEGAN + minute * MINUTE)
        # Missed first in one of the last five minutes, this one among them.
        recent = set().union(*minutes[max(0, minute - 5) : minute]) - present
        assert {each.id for each in watched.nodes} == {NODES[n].id for n in recent}


def test_node_that_is_back_is_known_by_its_address() -> None:
    watched = NodesAway()
    watched.update([node("a"), node("b")], BEGAN)
    watched.update([node("a"), node("c", address=node("b").address)], BEGAN + MINUTE)
    assert watched.nodes == []
    # Another one at the address of a node that stays is not this one.
    one, two = node("d", address="10.0.0.1"), node("e", address="10.0.0.1")
    watched.update([one, two], BEGAN + 10 * MINUTE)
    watched.update([one], BEGAN + 11 * MINUTE)
    assert [each.id for each in watched.nodes if each.address == "10.0.0.1"] == ["e"]


def test_time_without_any_node_does_not_count() -> None:
    watched = NodesAway()
    watched.update(NODES, BEGAN)
    for minute in (1, 60):
        watched.update([], BEGAN + minute * MINUTE)
        assert watched.nodes == NODES
    watched.update(NODES[:1], BEGAN + 90 * MINUTE)
    watched.update(NODES[:1], BEGAN + 94 * MINUTE)
    assert {each.id for each in watched.nodes} == {"b", "c"}
    watched.update(NODES[:1], BEGAN + 95 * MINUTE)
    assert watched.nodes == []


def test_stored_nodes_are_those_that_were_away() -> None:
    away = [NodeAway(node("a", gpus=2), BEGAN), NodeAway(node("b"), BEGAN + MINUTE)]
    stored = scheduling.stored_away(away)
    stored[0]["node"]["of_a_newer_version"] = 1
    assert scheduling.nodes_away_of(ClusterSnapshot(nodes_away=stored)) == away


AUTO: dict[str, Any] = {"cpus_per_worker": "auto", "gpus_per_worker": "auto"}


def test_first_attempt_waits_for_a_gpu_that_is_away(world: World) -> None:
    head, gpu = node("a"), node("b", cpus=8, gpus=1)
    world.executor.nodes = [head, gpu]
    world.tick()
    world.executor.nodes = [head]
    world.restart("second")
    world.ahead += timedelta(minutes=2)  # the lease of the first one expires
    job = world.add_job(**AUTO)
    world.tick()
    assert "more machines" in world.events(job, "waiting")[-1]
    world.tick(SHRINK_AFTER.total_seconds() - 20)
    assert world.status(job) == JobStatus.QUEUED
    world.executor.nodes = [head, node("c", cpus=8, gpus=1, address=gpu.address)]
    for _ in range(4):
        world.tick()
    assert (world.job(job).cpus_per_worker, world.job(job).gpus_per_worker) == (8, 1)
    assert world.events(job, "no_gpus") == []


def test_first_attempt_without_gpus_tells_so(world: World) -> None:
    world.executor.nodes = [node("a"), node("b", gpus=1)]
    world.tick()
    world.executor.nodes = [node("a")]
    job = world.add_job(**AUTO)
    limited = world.add_job(token_id=world.add_token(max_gpus=0), **AUTO)
    for _ in range(2):
        world.tick(20)
    (why,) = world.events(limited, "no_gpus")
    assert "because max_gpus of its token or tenant is 0. Once that is raised" in why
    world.worker_finishes(limited, "succeeded")
    world.executor.end(world.run_id(limited), 0)
    assert world.job(job).gpus_per_worker is None
    world.tick(SHRINK_AFTER.total_seconds())
    world.tick(20)
    assert (world.job(job).cpus_per_worker, world.job(job).gpus_per_worker) == (4, 0)
    assert world.job(job).resolved["train"]["precision"] == "fp32"
    assert world.events(job, "no_gpus") == [
        "All attempts of the job train on CPUs, because no node that it may use has a GPU for its ranks, "
        "nor had one in the last minutes. Once there are GPUs, clone it with resources.gpus_per_worker: 1 and "
        "train.precision: auto to train on them"
    ]


def test_cpus_shrink_once_nodes_are_gone_and_grow_again(world: World) -> None:
    both = [node("a"), node("b")]
    world.executor.nodes = both
    job = world.add_job(workers=2, cpus_per_worker="auto")

    def train(number: int, **ranks: int) -> None:
        assert world.attempt(job, number)
        world.worker_starts(job, number)
        world.worker_reports_placement(job, number, **ranks)
        world.worker_sends_heartbeat(job, number, progress={"step": 7})

    def stop(number: int) -> None:
        world.pause(job)
        world.tick()
        world.worker_finishes(job, "paused", number)
        world.executor.end(world.run_id(job, number), 0)
        world.resume(job)

    world.tick()
    train(1, a=1, b=1)
    assert world.job(job).cpus_per_worker == 4
    world.executor.nodes = both[:1]
    stop(1)
    for _ in range(3):
        world.tick()
    assert world.status(job) == JobStatus.QUEUED
    world.tick(SHRINK_AFTER.total_seconds())
    train(2, a=2)
    assert (world.job(job).cpus_per_worker, world.job(job).first_cpus_per_worker) == (2, 4)
    world.executor.nodes = both
    stop(2)
    for _ in range(3):
        world.tick()
    assert world.attempt(job, 3)
    assert world.job(job).cpus_per_worker == 4
