"""An executor that runs only while there is work: what the dispatcher asks of it, and what the API tells meanwhile."""

from datetime import timedelta

import pytest

from service.scheduling import repository as scheduling
from service.scheduling.dispatcher_report import DispatcherReport, RayReport
from service.scheduling.nodes import Cluster
from tests.support.dispatcher_world import World


class OnDemand:
    """Runs as long as the test says so, and records whether it was needed."""

    def __init__(self) -> None:
        self.rests: RayReport | None = RayReport(state="idle")
        self.asked: list[bool] = []
        """Whether it was needed, in each round."""

    def keep(self, *, needed: bool) -> RayReport | None:
        self.asked.append(needed)
        return self.rests


@pytest.fixture
def on_demand(world: World) -> OnDemand:
    """What the world's dispatcher asks from now on."""
    on_demand = OnDemand()
    world.restart(on_demand=on_demand)
    return on_demand


def test_nothing_is_handed_over_before_it_runs(world: World, on_demand: OnDemand) -> None:
    world.executor.away = True
    world.tick()
    assert not on_demand.asked.pop()
    job = world.add_job()
    on_demand.rests = RayReport(state="starting")
    world.tick()
    assert on_demand.asked.pop()
    assert world.job(job).status == "queued"
    world.executor.away, on_demand.rests = False, None
    world.tick()
    assert world.job(job).status == "starting"
    assert world.executor.submitted == [world.attempt(job).submission_id]


def test_everything_that_must_run_or_be_finished_counts_as_work(
    world: World, on_demand: OnDemand
) -> None:
    on_demand.rests = None
    world.tick()
    assert not on_demand.asked.pop()
    job = world.add_job()
    world.tick(times=2)
    assert on_demand.asked.pop()
    world.cancel(job)
    world.tick(times=3)
    assert world.job(job).status == "cancelled"
    assert not on_demand.asked.pop()


def test_nodes_of_the_last_time_stay_known(world: World, on_demand: OnDemand) -> None:
    on_demand.rests = None
    world.tick()
    on_demand.rests = RayReport(state="idle")
    world.ahead += timedelta(seconds=30)
    world.tick()
    with world.database.read() as session:
        found = scheduling.snapshot(session)
    assert found is not None
    assert (found.alive, found.at) == (False, world.now())
    assert Cluster(scheduling.read_nodes(found)).total_cpus == world.executor.nodes[0].total_cpus
    report = DispatcherReport.from_snapshot(found)
    assert report is not None
    assert report.ray == on_demand.rests


def test_cluster_without_work_is_polled_rarely_and_for_work_at_once(
    world: World, on_demand: OnDemand, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_demand.rests = None
    polls, cluster = [], world.executor.cluster

    def polled() -> Cluster:
        polls.append(world.now())
        return cluster()

    monkeypatch.setattr(world.executor, "cluster", polled)
    world.tick(1, times=15)
    every = world.settings.lease_seconds / 4
    assert len(polls) == 1 + int(14 / every)
    world.add_job()
    world.tick(0.25)
    assert polls[-1] == world.now()
    assert world.executor.submitted
