"""The numbers for "auto" in `resources`: pure rules, and admission with them."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasl_core.spec import Resources
from service.scheduling.admission import Queued, decide
from service.scheduling.automatic import (
    MOST_CPUS,
    MOST_CPUS_WITH_GPU,
    NOTHING,
    Automatic,
    choose,
    is_awaited,
    nodes_of_limit,
    with_numbers,
)
from service.scheduling.machines_lack import MachinesLack
from service.scheduling.nodes import ANY_NODE, GPU_TYPE_LABEL, Cluster, Node, NodeChoice
from service.scheduling.nodes_away import NodesAway
from service.scheduling.packing import Demand, Room, Worker, most_places
from service.scheduling.quota import NO_QUOTA, Quota
from service.settings import ClusterLimit, NodeShape

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
BOTH = Automatic(cpus=True, gpus=True)


def nodes(*sizes: tuple[float, float]) -> list[Node]:
    return [
        Node(f"n{index}", f"10.0.0.{index}", cpus, gpus, 0, 0, total_memory=2**40)
        for index, (cpus, gpus) in enumerate(sizes)
    ]


def demand(workers: int = 1, *, memory: int = 0, choice: NodeChoice = ANY_NODE) -> Demand:
    return Demand(workers, Worker(1, 0, memory), choice)


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
    chosen = choose(demand(workers), BOTH, nodes(*sizes))
    assert chosen == demand(workers)._replace(worker=Worker(*expected))


def test_numbers_of_the_spec_stay() -> None:
    fixed = Demand(1, Worker(3, 0))
    cluster = nodes((32, 4))
    assert choose(fixed, NOTHING, cluster) == fixed
    assert choose(fixed, Automatic(gpus=True), cluster).worker == Worker(3, 1)
    # Without a GPU it leaves their part of the CPUs to the GPUs.
    assert choose(fixed, Automatic(cpus=True), cluster).worker == Worker(8, 0)
    # No node has a GPU for a worker with so many CPUs.
    large = Demand(1, Worker(48, 0))
    assert choose(large, Automatic(gpus=True), nodes((32, 4), (64, 0))).worker == Worker(48, 0)


def test_quota_without_gpus_leaves_the_cpus_beside_them() -> None:
    chosen = choose(demand(), BOTH, nodes((32, 4)), may_use_gpus=False)
    assert chosen.worker == Worker(8, 0)
    chosen = choose(demand(), BOTH, nodes((32, 4), (6, 0)), may_use_gpus=False)
    assert chosen.worker == Worker(6, 0)
    # A type of GPU is a request for one, which the quota then holds back.
    typed = demand(choice=NodeChoice(gpu_type="H100"))
    assert choose(typed, BOTH, nodes((32, 4)), may_use_gpus=False).worker.gpus == 1


def test_only_nodes_that_the_job_may_use_count() -> None:
    small, large = nodes((4, 1), (64, 0))
    small = replace(small, labels={GPU_TYPE_LABEL: "T4", "rack": "a"})
    large = replace(large, labels={"rack": "b"})
    rack_b = NodeChoice(labels=frozenset({("rack", "b")}))
    assert choose(demand(choice=rack_b), BOTH, [small, large]).worker == Worker(64, 0)
    # GPUs that may join elsewhere do not, either.
    limit = nodes_of_limit((NodeShape(2, 16, 4),))
    assert choose(demand(choice=rack_b), BOTH, [small, large], limit).worker == Worker(64, 0)
    without = NodeChoice(excluded=frozenset({"n0"}))
    assert choose(demand(choice=without), BOTH, [small, large]).worker == Worker(64, 0)


def test_same_node_is_shared_by_all_workers() -> None:
    together = demand(4, choice=NodeChoice(same_node=True))
    assert choose(together, BOTH, nodes((2, 0), (8, 0), (8, 0))).worker == Worker(2, 0)


def test_memory_limits_the_workers_of_a_node() -> None:
    (node,) = nodes((16, 0))
    cluster = [replace(node, total_memory=10), replace(node, id="b", total_memory=1)]
    assert choose(demand(2, memory=5), BOTH, cluster).worker == Worker(8, 0, 5)


def test_drained_nodes_count_only_if_nothing_else_is_left() -> None:
    small, large = nodes((4, 0), (16, 0))
    drained = replace(small, drained=True)
    assert choose(demand(), BOTH, [drained, large]).worker.cpus == 16
    assert choose(demand(), BOTH, [drained]).worker.cpus == 4
    # A job does not train without the GPU that is away for maintenance.
    (gpu,) = nodes((16, 2))
    assert choose(demand(), BOTH, [small, replace(gpu, drained=True)]).worker == Worker(8, 1)


def test_largest_cluster_counts_for_what_is_not_there_yet() -> None:
    limit = nodes_of_limit((NodeShape(2, 16, 4), NodeShape(1, 8, 0)))
    assert len(limit) == 3
    assert choose(demand(), BOTH, nodes((2, 0)), limit).worker == Worker(4, 1)
    assert choose(demand(4), Automatic(cpus=True), nodes((2, 0)), limit).worker.cpus == 2
    assert nodes_of_limit("current") == nodes_of_limit(None) == []


def test_nodes_that_are_away_count_for_what_is_not_there() -> None:
    small, gpu, large = nodes((4, 0), (16, 2), (16, 0))
    assert choose(demand(), BOTH, [small], away=[gpu]).worker == Worker(8, 1)
    assert choose(demand(), BOTH, [small], away=[large]).worker == Worker(4, 0)
    assert choose(demand(6), BOTH, [small], away=[large]).worker == Worker(3, 0)
    there = NodeChoice(excluded=frozenset({gpu.id}))
    assert choose(demand(choice=there), BOTH, [small], away=[gpu]).worker == Worker(4, 0)


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
    st.lists(sizes, max_size=2),
    st.lists(sizes, max_size=2),
)
def test_whatever_fits_with_one_cpu_fits_with_the_share(
    shapes: list[tuple[float, float]],
    workers: int,
    memory: int,
    choice: NodeChoice,
    automatic: Automatic,
    may_use_gpus: bool,
    gone: list[tuple[float, float]],
    joining: list[tuple[float, float]],
) -> None:
    cluster, wanted = nodes(*shapes), demand(workers, memory=memory, choice=choice)
    away = [replace(node, id=f"away{node.id}") for node in nodes(*gone)]
    largest = [replace(node, id=f"joining{node.id}") for node in nodes(*joining)]
    chosen = choose(wanted, automatic, cluster, largest, away=away, may_use_gpus=may_use_gpus)
    assert chosen._replace(worker=wanted.worker) == wanted
    least = chosen._replace(worker=chosen.worker._replace(cpus=1))
    # It fits on the first of these on which any number would, and so never demands more than they can serve.
    for kind in (cluster, [*cluster, *away], largest):
        if most_places(kind, least) >= workers:
            assert most_places(kind, chosen) >= workers
            break
    else:
        assert not is_awaited(chosen, cluster, away, largest)
    # On the nodes alone a worker fits if any worker of one CPU does, and never fewer of them.
    here = choose(wanted, automatic, cluster, may_use_gpus=may_use_gpus)
    usable = [node for node in cluster if choice.allows(node)]
    least = here._replace(worker=here.worker._replace(cpus=1))
    assert bool(most_places(usable, here)) == bool(most_places(usable, wanted))
    assert most_places(usable, here) >= min(most_places(usable, least), workers)
    assert chosen.worker.gpus == 0 or may_use_gpus
    limit = MOST_CPUS_WITH_GPU if chosen.worker.gpus else MOST_CPUS
    assert 1 <= chosen.worker.cpus <= limit


def queued(name: str, workers: int = 1, **changes: Any) -> Queued:
    job = Queued(name, 0, demand(workers), timedelta(hours=1), automatic=BOTH)
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


def test_cores_that_other_programs_use_are_not_waited_for() -> None:
    cluster = Cluster(tuple(nodes((8, 0))))
    (decision,) = decide(cluster, [], [queued("a")], BEGAN, {"n0": Room(3, 0)})
    assert decision.starts
    assert decision.job.demand.worker == Worker(5, 0)


def test_autoscaler_is_asked_for_nodes_of_the_largest_cluster() -> None:
    cluster = Cluster(tuple(nodes((2, 0))))
    (decision,) = decide(cluster, [], [queued("a")], BEGAN, limit=(NodeShape(4, 32, 4),))
    assert decision.waits_for == "machines"
    assert decision.job.demand.worker == Worker(8, 1)


HAD = Automatic(cpus=True, had_cpus=True)


def again(workers: int, cpus: int) -> Queued:
    """Return a job whose first attempt had so many CPUs for each worker."""
    had = Demand(workers, Worker(cpus, 0))
    return queued("a", attempt=1, demand=had, automatic=HAD)


@pytest.mark.parametrize(
    ("sizes", "foreign", "expected"),
    [
        ([(8, 0)], 0, Worker(4, 0)),
        ([(32, 0), (32, 0)], 0, Worker(4, 0)),
        # What is left is all that there is, and nothing says when other programs end.
        ([(6, 0)], 0, Worker(3, 0)),
        ([(4, 0), (1, 0)], 0, Worker(2, 0)),
        ([(8, 0)], 2, Worker(3, 0)),
    ],
)
def test_next_attempt_has_the_same_cpus_while_they_fit(
    sizes: list[tuple[float, float]], foreign: int, expected: Worker
) -> None:
    cluster = Cluster(tuple(nodes(*sizes)))
    others = {"n0": Room(foreign, 0)} if foreign else {}
    (decision,) = decide(cluster, [], [again(2, 4)], BEGAN, others)
    assert decision.starts
    assert decision.job.demand == Demand(2, expected)


def test_next_attempt_waits_for_nodes_that_may_be_back() -> None:
    left, gone = nodes((6, 0), (8, 0))
    cluster, job = Cluster((left,)), again(2, 4)
    (decision,) = decide(cluster, [], [job], BEGAN, away=[gone])
    assert (decision.waits_for, decision.job.demand) == ("machines", job.demand)
    assert decision.message.endswith(
        "It starts with 6 CPUs once this has lasted for 5 minutes and there is room"
    )
    assert decision.keeps == Demand(2, Worker(3, 0))
    limit = (NodeShape(1, 8, 0),)
    (decision,) = decide(cluster, [], [job], BEGAN, limit=limit)
    assert decision.waits_for == "machines"
    (decision,) = decide(cluster, [], [job], BEGAN, limit=limit, lacking={"a"})
    assert (decision.starts, decision.job.demand) == (True, Demand(2, Worker(3, 0)))
    # A person drained what it lacks.
    drained = Cluster((left, replace(gone, drained=True)))
    (decision,) = decide(drained, [], [job], BEGAN)
    assert (decision.starts, decision.job.demand) == (True, Demand(2, Worker(3, 0)))


@given(
    st.lists(st.sampled_from([1, 4, 8]), min_size=2, max_size=3),
    st.lists(st.sets(st.integers(0, 2)), min_size=1, max_size=12),
    st.integers(1, 4),
    st.sampled_from([1, 3, 4, 8]),
    st.sampled_from([None, (NodeShape(2, 8, 0),)]),
)
def test_demand_stays_while_nodes_come_and_go(
    cpus: list[int], minutes: list[set[int]], workers: int, had: int, limit: ClusterLimit
) -> None:
    """A job is queued again; each minute some nodes are away, and in the end nothing changes for long."""
    every, job = nodes(*((each, 0) for each in cpus)), again(workers, had)
    away, lack, last = NodesAway(), MachinesLack(), None
    present = every
    away.update(present, BEGAN)
    left: dict[str, int] = {}
    for minute, absent in enumerate([*minutes, *[minutes[-1]] * 12]):
        now, before = BEGAN + timedelta(minutes=minute), present
        present = [node for n, node in enumerate(every) if n not in absent]
        left |= {node.id: minute for node in before if node not in present}
        for node in present:
            left.pop(node.id, None)
        away.update(present, now)
        lacking = lack.long(now)
        if not present:
            lack.reset()
            continue
        (decision,) = decide(
            Cluster(tuple(present)), [], [job], now, lacking=lacking, away=away.nodes, limit=limit
        )
        lack.update([decision], now)
        demand = decision.job.demand
        if most_places(present, job.demand) >= workers:
            assert decision.starts, "what it had fits"
            assert demand == job.demand
        elif decision.starts:
            assert demand.worker.cpus < had
            assert most_places(present, demand) >= workers
            recent = [node for node in every if left.get(node.id, -9) > minute - 5]
            for awaited in ([*present, *recent], nodes_of_limit(limit)):
                assert job.job_id in lacking or most_places(awaited, job.demand) < workers
        elif before == present and last is not None:
            assert demand.worker.cpus <= last.worker.cpus, "it does not flip"
        if decision.starts:
            return
        last = demand
    assert not present or sum(node.total_cpus for node in present) < workers, "it starves"


def test_retry_elsewhere_may_have_fewer_cpus() -> None:
    cluster = Cluster(tuple(nodes((8, 0), (8, 0))))
    failed = replace(again(4, 4), avoided=frozenset({"n0"}), avoids_until=BEGAN)
    (decision,) = decide(cluster, [], [failed], BEGAN)
    assert decision.starts
    assert decision.job.demand == Demand(4, Worker(2, 0)).without({"n0"})
    # With one CPU each they fit on no other, so it tries the same nodes again.
    (decision,) = decide(cluster, [], [replace(failed, demand=Demand(16, Worker(1, 0)))], BEGAN)
    assert (decision.starts, decision.job.avoided) == (True, frozenset())
    assert decision.job.demand == Demand(16, Worker(1, 0))


def test_smaller_attempts_have_the_same_share() -> None:
    cluster = Cluster(tuple(nodes((16, 2))))
    elastic = queued(
        "a",
        4,
        attempt=1,
        smaller=(demand(2), demand(1)),
        demand=demand(4)._replace(worker=Worker(1, 1)),
        automatic=Automatic(cpus=True),
    )
    (decision,) = decide(cluster, [], [elastic], BEGAN, lacking={"a"})
    assert decision.starts
    assert decision.job.demand == Demand(2, Worker(8, 1))


def test_stored_spec_with_numbers() -> None:
    stored: dict[str, Any] = {
        "resources": {"workers": 2, "cpus_per_worker": "auto", "gpus_per_worker": 1},
        "x": 1,
    }
    chosen = with_numbers(stored, 4, 0)
    assert chosen["resources"] == {"workers": 2, "cpus_per_worker": 4, "gpus_per_worker": 1}
    assert stored["resources"]["cpus_per_worker"] == "auto"
    others: list[Any] = [stored, {}, [], None, {"resources": 5}]
    for spec in others:
        assert with_numbers(spec, None, None) is spec
    assert Automatic.of(Resources()) == BOTH
    assert Automatic.of(Resources(cpus_per_worker=1, gpus_per_worker=0)) == NOTHING
    assert math.isinf(nodes_of_limit((NodeShape(1, 4, 0),))[0].total_memory)
