"""Guaranteed places for workers: never too many, and exact where all placements are known."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.scheduling.nodes import Node
from service.scheduling.packing import Demand, Worker, empty_places, fits, sure_places

sizes = st.tuples(st.integers(0, 9), st.integers(0, 4))
workers = st.builds(Worker, st.integers(1, 5), st.integers(0, 2))


def node(cpus: float, gpus: float = 0) -> Node:
    return Node("n", "127.0.0.1", cpus, gpus, 0, 0)


@st.composite
def placed(draw: st.DrawFn, alike: bool = False) -> tuple[list[Node], list[Node], list[Worker]]:
    """Generate nodes, their free resources after Ray placed some workers, and these workers."""
    totals = draw(st.lists(sizes, min_size=1, max_size=4))
    left = [list(total) for total in totals]
    there = []
    kinds = st.just(draw(workers)) if alike else workers
    for worker, place in draw(st.lists(st.tuples(kinds, st.integers(0, 3)), max_size=12)):
        on = left[place % len(left)]
        if on[0] >= worker.cpus and on[1] >= worker.gpus:
            on[0], on[1] = on[0] - worker.cpus, on[1] - worker.gpus
            there.append(worker)
    return [node(*total) for total in totals], [node(*rest) for rest in left], there


@given(placed(), workers)
def test_estimated_room_exists_for_any_placement_of_others(
    world: tuple[list[Node], list[Node], list[Worker]], worker: Worker
) -> None:
    nodes, left, there = world
    assert sure_places(nodes, Counter(there), worker) <= empty_places(left, worker)


@given(placed(alike=True))
def test_packing_is_exact_for_equal_workers(
    world: tuple[list[Node], list[Node], list[Worker]],
) -> None:
    nodes, left, there = world
    for worker in set(there):
        assert sure_places(nodes, Counter(there), worker) == empty_places(left, worker)


@given(placed(), workers)
def test_on_one_node_it_is_exact(
    world: tuple[list[Node], list[Node], list[Worker]], worker: Worker
) -> None:
    nodes, left, there = world
    if len(nodes) == 1:
        assert sure_places(nodes, Counter(there), worker) == empty_places(left, worker)


@given(st.lists(sizes, min_size=1, max_size=4), workers)
def test_on_empty_nodes_it_is_exact(totals: list[tuple[int, int]], worker: Worker) -> None:
    nodes = [node(*total) for total in totals]
    assert sure_places(nodes, Counter(), worker) == empty_places(nodes, worker)


@pytest.mark.parametrize(
    ("nodes", "there", "worker", "places"),
    [
        # Two small workers may be on one node each, and then no node is empty.
        ([node(8), node(8)], {Worker(1, 0): 2}, Worker(8, 0), 0),
        ([node(8), node(8), node(8)], {Worker(1, 0): 2}, Worker(8, 0), 1),
        # Small workers first fill the rest that large ones cannot use: 2 of 8 CPUs beside two of 3.
        ([node(8), node(8)], {Worker(1, 0): 4}, Worker(3, 0), 3),
        ([node(8), node(8)], {Worker(1, 0): 2}, Worker(3, 0), 4),
        # CPU jobs beside GPU jobs: 32 of 64 CPUs of a node are no use to workers with a GPU each.
        ([node(64, 8)] * 4, {Worker(4, 1): 16, Worker(4, 0): 8}, Worker(4, 1), 16),
        ([node(64, 8)] * 4, {Worker(4, 1): 16, Worker(4, 0): 10}, Worker(4, 1), 14),
        # GPU jobs beside GPU jobs with more CPUs each: what a node runs out of is GPUs.
        ([node(64, 8)] * 8, {Worker(8, 1): 8}, Worker(1, 1), 56),
        ([node(96, 8)] * 2, {Worker(12, 1): 2}, Worker(1, 1), 14),
        # Unless their CPUs fill a node before its GPUs are used.
        ([node(64, 8)] * 8, {Worker(16, 1): 4}, Worker(1, 1), 56),
        ([node(64, 8)] * 8, {Worker(4, 2): 4}, Worker(8, 1), 56),
        # A head without CPUs offers no places.
        ([node(0), node(4)], {Worker(1, 0): 1}, Worker(3, 0), 1),
        # A node was lost while workers ran on it.
        ([node(2)], {Worker(1, 0): 3}, Worker(1, 0), 0),
        ([node(2.5), node(2.5)], {Worker(1, 0): 1}, Worker(2, 0), 1),
    ],
)
def test_places(nodes: list[Node], there: dict[Worker, int], worker: Worker, places: int) -> None:
    assert sure_places(nodes, Counter(there), worker) == places


def test_job_needs_room_for_all_workers() -> None:
    nodes = [node(4), node(4)]
    assert fits(nodes, Counter(), Demand(2, Worker(3, 0)))
    assert not fits(nodes, Counter(), Demand(3, Worker(3, 0)))
