"""Guaranteed places for workers: never too many, and exact where all placements are known."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.scheduling.nodes import Node
from service.scheduling.occupancy import Occupancy
from service.scheduling.packing import Demand, Room, Worker, places, sure_places

sizes = st.tuples(st.integers(0, 9), st.integers(0, 4))
workers = st.builds(Worker, st.integers(1, 5), st.integers(0, 2))


def room(cpus: float, gpus: float = 0) -> Room:
    return Room(cpus, gpus)


Placed = tuple[list[Room], list[Room], list[tuple[Worker, int]]]


@st.composite
def placed(draw: st.DrawFn, alike: bool = False) -> Placed:
    """Generate nodes, what Ray left of them when it placed some workers, and these with their nodes."""
    totals = draw(st.lists(sizes, min_size=1, max_size=4))
    left = [list(total) for total in totals]
    there = []
    kinds = st.just(draw(workers)) if alike else workers
    for worker, place in draw(st.lists(st.tuples(kinds, st.integers(0, 3)), max_size=12)):
        node = place % len(left)
        on = left[node]
        if on[0] >= worker.cpus and on[1] >= worker.gpus:
            on[0], on[1] = on[0] - worker.cpus, on[1] - worker.gpus
            there.append((worker, node))
    return [room(*total) for total in totals], [room(*rest) for rest in left], there


def kinds(there: list[tuple[Worker, int]]) -> Counter[Worker]:
    return Counter(worker for worker, _ in there)


@given(placed(), workers)
def test_estimated_room_exists_for_any_placement_of_others(world: Placed, worker: Worker) -> None:
    nodes, left, there = world
    assert sure_places(nodes, kinds(there), worker) <= places(left, worker)


@given(placed(alike=True))
def test_packing_is_exact_for_equal_workers(
    world: Placed,
) -> None:
    nodes, left, there = world
    for worker in kinds(there):
        assert sure_places(nodes, kinds(there), worker) == places(left, worker)


@given(placed(), workers)
def test_on_one_node_it_is_exact(world: Placed, worker: Worker) -> None:
    nodes, left, there = world
    if len(nodes) == 1:
        assert sure_places(nodes, kinds(there), worker) == places(left, worker)


@given(st.lists(sizes, min_size=1, max_size=4), workers)
def test_on_empty_nodes_it_is_exact(totals: list[tuple[int, int]], worker: Worker) -> None:
    nodes = [room(*total) for total in totals]
    assert sure_places(nodes, Counter(), worker) == places(nodes, worker)


@pytest.mark.parametrize(
    ("rooms", "there", "worker", "expected"),
    [
        # Two small workers may be on one node each, and then no node is empty.
        ([room(8), room(8)], {Worker(1, 0): 2}, Worker(8, 0), 0),
        ([room(8), room(8), room(8)], {Worker(1, 0): 2}, Worker(8, 0), 1),
        # Small workers first fill the rest that large ones cannot use: 2 of 8 CPUs beside two of 3.
        ([room(8), room(8)], {Worker(1, 0): 4}, Worker(3, 0), 3),
        ([room(8), room(8)], {Worker(1, 0): 2}, Worker(3, 0), 4),
        # CPU jobs beside GPU jobs: 32 of 64 CPUs of a node are no use to workers with a GPU each.
        ([room(64, 8)] * 4, {Worker(4, 1): 16, Worker(4, 0): 8}, Worker(4, 1), 16),
        ([room(64, 8)] * 4, {Worker(4, 1): 16, Worker(4, 0): 10}, Worker(4, 1), 14),
        # GPU jobs beside GPU jobs with more CPUs each: what a node runs out of is GPUs.
        ([room(64, 8)] * 8, {Worker(8, 1): 8}, Worker(1, 1), 56),
        ([room(96, 8)] * 2, {Worker(12, 1): 2}, Worker(1, 1), 14),
        # Unless their CPUs fill a node before its GPUs are used.
        ([room(64, 8)] * 8, {Worker(16, 1): 4}, Worker(1, 1), 56),
        ([room(64, 8)] * 8, {Worker(4, 2): 4}, Worker(8, 1), 56),
        # A head without CPUs offers no places.
        ([room(0), room(4)], {Worker(1, 0): 1}, Worker(3, 0), 1),
        # A node was lost while workers ran on it.
        ([room(2)], {Worker(1, 0): 3}, Worker(1, 0), 0),
        ([room(2.5), room(2.5)], {Worker(1, 0): 1}, Worker(2, 0), 1),
    ],
)
def test_places(rooms: list[Room], there: dict[Worker, int], worker: Worker, expected: int) -> None:
    assert sure_places(rooms, Counter(there), worker) == expected


NODES = [Node(name, "127.0.0.1", 8, 2, 0, 0) for name in ("a", "b")]


def test_job_needs_room_for_all_workers() -> None:
    occupancy = Occupancy(NODES)
    assert occupancy.fits(Demand(2, Worker(8, 0)))
    assert not occupancy.fits(Demand(3, Worker(8, 0)))


def test_workers_take_room_on_their_node_only_if_it_is_known() -> None:
    whole, pair = Demand(1, Worker(8, 0)), Demand(2, Worker(1, 0))
    occupancy = Occupancy(NODES)
    occupancy.change(pair, None, +1)
    assert not occupancy.fits(whole), "each may be on one node"
    occupancy.change(pair, None, -1)
    occupancy.change(pair, {"a": 2}, +1)
    assert occupancy.fits(whole)
    assert occupancy.fits(Demand(14, Worker(1, 0)))
    assert not occupancy.fits(Demand(15, Worker(1, 0)))


def test_workers_on_a_node_that_is_not_listed_may_be_anywhere() -> None:
    occupancy = Occupancy(NODES)
    occupancy.change(Demand(2, Worker(1, 0)), {"a": 1, "gone": 1}, +1)
    assert not occupancy.fits(Demand(1, Worker(8, 0)))
    occupancy.change(Demand(2, Worker(1, 0)), {"a": 1, "gone": 1}, -1)
    assert occupancy.fits(Demand(2, Worker(8, 0)))


@given(placed(), st.lists(st.booleans(), min_size=12, max_size=12), workers)
def test_some_known_placements_never_promise_too_much(
    world: Placed, known: list[bool], worker: Worker
) -> None:
    rooms, left, there = world
    occupancy = Occupancy([Node(str(i), "", *size, 0, 0) for i, size in enumerate(rooms)])
    for (other, node), is_known in zip(there, known, strict=False):
        occupancy.change(Demand(1, other), {str(node): 1} if is_known else None, +1)
    most = places(left, worker)
    assert not occupancy.fits(Demand(most + 1, worker))
    if all(known[: len(there)]):
        assert most == 0 or occupancy.fits(Demand(most, worker))


@settings(max_examples=50)
@given(
    placed(),
    st.lists(st.booleans(), min_size=12, max_size=12),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1)), min_size=4, max_size=4),
)
def test_foreign_use_is_never_overestimated(
    world: Placed, known: list[bool], others: list[tuple[int, int]]
) -> None:
    rooms, left, there = world
    nodes = [
        Node(str(n), "", *size, size.cpus - rest.cpus + cpus, size.gpus - rest.gpus + gpus)
        for n, (size, rest, (cpus, gpus)) in enumerate(zip(rooms, left, others, strict=False))
    ]
    occupancy = Occupancy(nodes)
    for (worker, node), is_known in zip(there, known, strict=False):
        occupancy.change(Demand(1, worker), {str(node): 1} if is_known else None, +1)
    found = occupancy.unexplained_use(nodes)
    exact = all(known[: len(there)])
    for each, use in zip(nodes, others, strict=False):
        cpus, gpus = found.get(each.id, Room(0, 0))
        assert (cpus, gpus) == use if exact else cpus <= use[0] and gpus <= use[1]
