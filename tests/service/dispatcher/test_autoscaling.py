"""Tests of the demand that Ray's autoscaler is shown; its own scheduler says whether it can be served."""

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.autoscaler.v2.instance_manager.config import NodeTypeConfig
from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
from ray.autoscaler.v2.utils import ResourceRequestUtil
from ray.core.generated.autoscaler_pb2 import ClusterResourceConstraint

from service.dispatcher.checks import ApiCheck, StoreCheck
from service.scheduling import autoscaling
from service.scheduling.autoscaling import Bundles, bundles, certain, choose
from service.scheduling.nodes import Node, NodeChoice
from service.scheduling.packing import Demand, Worker
from service.settings import NodeShape
from tests.support.dispatcher_world import World

GPU, CPU = Demand(1, Worker(4, 1)), Demand(1, Worker(1, 0))
MISTYPED = Demand(1, Worker(1, 0), NodeChoice(gpu_type="H10O"))
GB = 10**9


def launched(request: Bundles, limit: tuple[NodeShape, ...]) -> int | None:
    """Return how many nodes Ray's autoscaler adds to none; `None` if it refuses the request."""
    types = {
        str(number): NodeTypeConfig(
            str(number),
            0,
            shape.nodes,
            resources={"CPU": shape.cpus, "GPU": shape.gpus, "memory": 1000 * GB},
            labels={"rack": "1"},
        )
        for number, shape in enumerate(limit)
    }
    requests = [
        ResourceRequestUtil.make(
            resources, label_selectors=[[(name, 1, [value]) for name, value in labels.items()]]
        )
        if labels
        else ResourceRequestUtil.make(resources)
        for count, resources, labels in request
        for _ in range(count)
    ]
    constraint = ClusterResourceConstraint(
        resource_requests=ResourceRequestUtil.group_by_count(requests)
    )
    reply = ResourceDemandScheduler().schedule(
        SchedulingRequest(
            disable_launch_config_check=True,
            node_type_configs=types,
            cluster_resource_constraints=[constraint],
        )
    )
    if reply.infeasible_cluster_resource_constraints:
        return None
    return sum(int(launch.count) for launch in reply.to_launch)


def test_rays_autoscaler_adds_no_node_for_a_request_that_it_cannot_serve_as_a_whole() -> None:
    limit = (NodeShape(4, 16, 1),)
    assert launched([(4, {"CPU": 4, "GPU": 1}, {})], limit) == 4
    assert launched([(5, {"CPU": 4, "GPU": 1}, {})], limit) is None
    assert launched([(1, {"CPU": 1}, {}), (1, {"CPU": 1}, {"rack": "2"})], limit) is None


def test_waiting_jobs_are_requested_up_to_the_limit() -> None:
    limit = (NodeShape(4, 16, 1),)
    chosen = choose([GPU], [GPU] * 5, limit, 0)
    assert bundles([GPU, *chosen]) == [(4, {"CPU": 4, "GPU": 1}, {})]


def test_small_jobs_get_their_nodes_beside_full_gpu_nodes() -> None:
    """The GPU nodes are full; Ray's autoscaler places the large workers first."""
    limit = (NodeShape(4, 4, 0), NodeShape(4, 16, 1))
    running = [Demand(1, Worker(16, 1))] * 4
    assert choose(running, [CPU] * 20, limit, 0) == [CPU] * 16


def test_job_that_does_not_fit_hides_none_behind_it() -> None:
    limit = (NodeShape(4, 16, 1),)
    huge = Demand(autoscaling.MAX_WORKERS + 1, Worker(1, 0))
    for large in (huge, Demand(5, Worker(1, 1))):
        assert choose([], [large, CPU], limit, 0) == [CPU]
    assert choose([], [huge, CPU], None, 0) == [CPU]


def test_kinds_that_the_limit_does_not_describe_take_turns() -> None:
    limit = (NodeShape(4, 16, 1),)
    large = Demand(1, Worker(1, 0, 999 * GB))
    waiting = [MISTYPED, large, CPU, MISTYPED]
    turns = [choose([], waiting, limit, turn) for turn in range(4)]
    assert turns == [[CPU], [MISTYPED, CPU], [large, CPU], [CPU]]
    assert [choose([], waiting, None, turn) for turn in range(3)] == [[MISTYPED], [large], [CPU]]
    assert choose([], [large, large], limit, 7) == [large]
    assert choose([], [], limit, 7) == []


RACK = NodeChoice(labels=frozenset({("rack", "1")}))
demands = st.builds(
    Demand,
    st.integers(1, 3),
    st.builds(Worker, st.integers(1, 9), st.integers(0, 3), st.sampled_from([0, 0, GB])),
    st.sampled_from([NodeChoice(), NodeChoice(), RACK]),
)
shapes = st.builds(NodeShape, st.integers(1, 4), st.integers(1, 12), st.integers(0, 3))


@given(
    st.lists(shapes, min_size=1, max_size=3).map(tuple),
    st.lists(demands, max_size=8),
    st.lists(demands, max_size=8),
)
def test_rays_autoscaler_can_serve_what_fits_the_limit(
    limit: tuple[NodeShape, ...], earlier: list[Demand], waiting: list[Demand]
) -> None:
    running: list[Demand] = []
    for turn in range(3):
        chosen = choose(running, earlier, limit, turn)
        # Ray may refuse a kind of job that the limit does not describe.
        if launched(bundles([*running, *chosen]), limit) is not None:
            running += chosen
    sure = certain(running, waiting, limit)
    assert launched(bundles([*running, *sure]), limit) is not None
    turns = [choose(running, waiting, limit, turn) for turn in range(len(waiting) + 1)]
    assert not sure or turns[0] == sure
    for chosen in turns:
        demanded = sum(each.workers for each in [*running, *chosen])
        assert sum(count for count, _, _ in bundles([*running, *chosen])) == demanded
    # Each job that Ray could serve gets a turn, unless those before it take its place.
    shown = {each for chosen in turns for each in chosen}
    for demand in set(waiting) - shown:
        assert (
            certain(running, [demand], limit)
            or launched(bundles([*running, demand]), limit) is None
        )


def test_job_that_only_may_fit_takes_turns() -> None:
    """The 8 CPUs need a node for themselves, and the others fit on one, if Ray places them so."""
    limit, large = (NodeShape(2, 8, 0),), Demand(1, Worker(8, 0))
    running = [Demand(1, Worker(5, 0)), Demand(1, Worker(3, 0))]
    assert choose(running, [large, large], limit, 0) == [large]
    assert launched(bundles([*running, large]), limit) == 2
    assert choose([*running, large], [large], limit, 0) == []


@pytest.fixture
def world(world: World) -> World:
    world.settings.autoscale = True
    world.executor.nodes = [head()]
    world.restart()
    return world


def head(name: str = "head", cpus: int = 0, **labels: str) -> Node:
    return Node(name, name, cpus, 0, 0, 0, labels=labels)


def shown(world: World) -> list[Any]:
    """Return the demands that Ray's autoscaler was shown: the numbers and the values of labels of each."""
    names = [name for name in world.executor.submitted if name.startswith("demand")]
    demands = [json.loads(world.executor.output(name)) for name in names]
    return [[(count, *labels.values()) for count, _, labels in bundles] for bundles in demands]


def wait(world: World, seconds: float) -> None:
    """Let time pass for the main loop, which alone shows demands."""
    for _ in range(int(seconds // 10)):
        world.main_round(10)


def test_kinds_of_jobs_take_turns_of_five_minutes(world: World) -> None:
    world.settings.cluster_limit = (NodeShape(4, 8, 0),)
    world.began -= timedelta(seconds=world.began.timestamp() % 900)
    for rack in ("a", "b", "a"):
        world.add_job(node_labels={"rack": rack})
    world.add_job(workers=2)
    wait(world, 1190)
    requests = [sorted(each) for each in shown(world)]
    sure: list[Any] = [(2,)]
    assert requests == [sure, [(1, "a"), (2,)], [(1, "b"), (2,)], sure]


@pytest.mark.parametrize("away", ["store", "api"])
def test_demand_stays_while_nothing_may_start(
    world: World, away: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add_job(node_labels={"rack": "a"})
    wait(world, 200)
    kind, name = (StoreCheck, "is_writable") if away == "store" else (ApiCheck, "answers")
    with monkeypatch.context() as patch:
        patch.setattr(kind, name, False)
        wait(world, 60)
    wait(world, 60)
    assert set(map(str, shown(world))) == {"[(1, 'a')]"}


def test_unchanged_demand_is_shown_again_after_some_minutes(world: World) -> None:
    """The program before may have failed."""
    job = world.add_job(workers=2)
    wait(world, 290)
    assert shown(world) == [[(2,)]]
    wait(world, 30)
    assert shown(world) == [[(2,)]] * 2
    world.cancel(job)
    wait(world, 600)
    assert shown(world) == [[(2,)]] * 2 + [[]] * 2, "a withdrawal is repeated once"


@pytest.mark.parametrize("how", ["away", "no-nodes", "other-node", "restarted"])
def test_demand_is_shown_again_when_ray_may_have_lost_it(world: World, how: str) -> None:
    world.add_job(workers=2)
    wait(world, 60)
    assert shown(world) == [[(2,)]]
    match how:
        case "away":
            world.executor.away = True
        case "no-nodes":
            world.executor.nodes = []
        case "other-node":
            world.executor.nodes = [head("other")]
        case "restarted":
            world.dispatcher.cluster_was_restarted("ray")
    world.tick()
    world.executor.away, world.executor.nodes = False, world.executor.nodes or [head()]
    wait(world, 30)
    assert shown(world) == [[(2,)]] * 2
