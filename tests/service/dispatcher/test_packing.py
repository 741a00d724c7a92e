"""Guaranteed places for workers: never too many, and exact where all placements are known."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.scheduling.nodes import GPU_TYPE_LABEL, Node, NodeChoice
from service.scheduling.occupancy import Occupancy
from service.scheduling.packing import Demand, Room, Worker, places, sure_places

sizes = st.tuples(st.integers(0, 9), st.integers(0, 4))
workers = st.builds(Worker, st.integers(1, 5), st.integers(0, 2), st.just(0))


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
    """On one node, and on empty nodes, the estimate is exact."""
    nodes, left, there = world
    sure = sure_places(nodes, kinds(there), worker)
    assert sure <= places(left, worker)
    assert sure_places(nodes, Counter(), worker) == places(nodes, worker)
    if len(nodes) == 1:
        assert sure == places(left, worker)


@given(placed(alike=True))
def test_packing_is_exact_for_equal_workers(world: Placed) -> None:
    nodes, left, there = world
    for worker in kinds(there):
        assert sure_places(nodes, kinds(there), worker) == places(left, worker)


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
    occupancy = Occupancy([Node(str(i), "", *size[:2], 0, 0) for i, size in enumerate(rooms)])
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
        Node(str(n), "", *size[:2], size.cpus - rest.cpus + cpus, size.gpus - rest.gpus + gpus)
        for n, (size, rest, (cpus, gpus)) in enumerate(zip(rooms, left, others, strict=False))
    ]
    occupancy = Occupancy(nodes)
    for (worker, node), is_known in zip(there, known, strict=False):
        occupancy.change(Demand(1, worker), {str(node): 1} if is_known else None, +1)
    found = occupancy.unexplained_use(nodes)
    exact = all(known[: len(there)])
    for each, use in zip(nodes, others, strict=False):
        cpus, gpus, _ = found.get(each.id, Room(0, 0))
        assert (cpus, gpus) == use if exact else cpus <= use[0] and gpus <= use[1]


node_sizes = st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(0, 9))
picky_workers = st.builds(Worker, st.integers(1, 5), st.integers(0, 2), st.integers(0, 5))
racks = st.sampled_from("xy")
choices = st.builds(
    NodeChoice,
    gpu_type=st.none() | st.sampled_from(["A100", "H100"]),
    labels=st.sets(st.tuples(st.just("rack"), racks), max_size=1).map(frozenset),
    excluded=st.sets(st.sampled_from(["0", "1", "2"]), max_size=1).map(frozenset),
    same_node=st.booleans(),
)
kinds_of_nodes = st.tuples(node_sizes, racks, st.sampled_from(["A100", "H100"]), st.booleans())


@st.composite
def picky(draw: st.DrawFn) -> tuple[list[Node], list[Room], Occupancy]:
    """Generate nodes with labels, what jobs with choices of nodes left of them, and their occupancy.

    Ray has placed the workers of each job on any nodes that its choice allows, as far as there was room;
    of some jobs the placement is known.
    """
    drawn = draw(st.lists(kinds_of_nodes, min_size=1, max_size=4))
    nodes = [
        Node(
            *(str(number), "", cpus, gpus, 0, 0),
            total_memory=memory,
            labels={"rack": rack, GPU_TYPE_LABEL: kind},
            drained=drained,
        )
        for number, ((cpus, gpus, memory), rack, kind, drained) in enumerate(drawn)
    ]
    left, occupancy = [Room.from_node(node) for node in nodes], Occupancy(nodes)
    jobs = st.tuples(st.integers(1, 3), picky_workers, choices, st.booleans(), st.integers(0, 99))
    for workers, worker, choice, known, whim in draw(st.lists(jobs, max_size=6)):
        demand = Demand(workers, worker, choice)
        rest, placement = left.copy(), Counter[str]()
        for _ in range(workers):
            hosts = [
                n
                for n, node in enumerate(nodes)
                if choice.allows(node) and rest[n].places(worker)
                if not (choice.same_node and placement) or str(n) in placement
            ]
            if not hosts:
                break
            on = hosts[whim % len(hosts)]
            rest[on] = Room(*(a - b for a, b in zip(rest[on], worker, strict=True)))
            placement[str(on)] += 1
        else:
            left = rest
            occupancy.change(demand, placement if known else None, +1)
    return nodes, left, occupancy


@settings(max_examples=300)
@given(picky(), st.integers(1, 3), picky_workers, choices)
def test_job_with_a_choice_of_nodes_is_never_promised_too_much(
    world: tuple[list[Node], list[Room], Occupancy],
    workers: int,
    worker: Worker,
    choice: NodeChoice,
) -> None:
    nodes, left, occupancy = world
    if occupancy.fits(Demand(workers, worker, choice)):
        usable = [
            room.places(worker)
            for node, room in zip(nodes, left, strict=True)
            if choice.allows(node) and not node.drained
        ]
        assert (max(usable) if choice.same_node else sum(usable)) >= workers


def test_choice_of_nodes() -> None:
    h100 = Node(
        "1", "10.0.0.1", 8, 2, 0, 0, name="big", labels={GPU_TYPE_LABEL: "H100", "rack": "x"}
    )
    a100 = Node("2", "10.0.0.2", 8, 2, 0, 0, labels={GPU_TYPE_LABEL: "A100"})
    without = Node("3", "10.0.0.3", 8, 0, 0, 0, labels={GPU_TYPE_LABEL: "H100"})
    nodes = [h100, a100, without]

    def allowed(choice: NodeChoice) -> str:
        return "".join(node.id for node in nodes if choice.allows(node))

    assert allowed(NodeChoice()) == "123"
    assert allowed(NodeChoice(gpu_type="H100")) == "1"
    assert allowed(NodeChoice(labels=frozenset({("rack", "x")}))) == "1"
    assert allowed(NodeChoice(excluded=frozenset({"big", "10.0.0.3"}))) == "2"
    assert NodeChoice(gpu_type="L4").why_no_node(nodes) == (
        "gpu_type",
        "no node has GPUs of type L4; the cluster has A100 (1 node), H100 (1 node)",
    )


def test_room_that_a_starting_job_needs_is_not_given_to_one_with_more_nodes() -> None:
    """The job for rack x may be placed after the other one, which Ray may put on its node."""
    rack = NodeChoice(labels=frozenset({("rack", "x")}))
    nodes = [
        Node("a", "10.0.0.1", 1, 0, 0, 0, labels={"rack": "x"}),
        Node("b", "10.0.0.2", 1, 0, 0, 0),
    ]
    occupancy, anywhere = Occupancy(nodes), Demand(1, Worker(1, 0))
    assert occupancy.fits(anywhere)
    occupancy.change(Demand(1, Worker(1, 0), rack), None, +1)
    assert not occupancy.fits(anywhere)
    occupancy.change(Demand(1, Worker(1, 0), rack), None, -1)
    occupancy.change(Demand(1, Worker(1, 0), rack), {"a": 1}, +1)
    assert occupancy.fits(anywhere)
