"""Order of ingests: tenants take turns, and one that hangs frees its place."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.datasets.ingests import repository as ingests
from service.db.models import Dataset, IngestRun
from service.protocol import UNDELIVERED_EXIT_CODE
from service.runs.turns import take_turns
from service.states import DatasetState
from tests.support.dispatcher_world import World


def started(world: World) -> list[str]:
    """Return the data sets whose ingest began, in order."""
    return [run.rsplit("-", 2)[0] for run in world.executor.submitted]


def test_many_data_sets_of_a_tenant_do_not_delay_another(world: World) -> None:
    many = [world.add_dataset(tenant="a") for _ in range(300)]
    world.tick()
    assert started(world) == many[:2]
    one = world.add_dataset(tenant="b")
    world.tick()
    assert started(world) == [*many[:2], one]
    world.end_ingest(many[0])
    world.tick()
    assert started(world) == [*many[:2], one, many[2]]


def test_ingests_of_a_tenant_alone_use_all_slots_in_order(world: World) -> None:
    waiting = [world.add_dataset(tenant="a") for _ in range(4)]
    world.tick()
    world.end_ingest(waiting[1])
    world.tick()
    assert started(world) == waiting[:3]


def test_tenant_whose_ingests_hang_leaves_a_place_to_others(world: World) -> None:
    many = [world.add_dataset(tenant="a") for _ in range(4)]
    world.tick(times=2)
    other, third = (world.add_dataset(tenant=tenant) for tenant in "bc")
    world.tick(times=2)
    assert started(world) == [*many[:2], other]
    world.end_ingest(other)
    world.tick(times=2)
    assert started(world) == [*many[:2], other, third]


def test_three_tenants_take_turns(world: World) -> None:
    """The tenant that registered last does not wait until the others have nothing left."""
    queues = {tenant: [world.add_dataset(tenant=tenant) for _ in range(4)] for tenant in "abc"}
    tenant_of = {id: tenant for tenant, ids in queues.items() for id in ids}
    for _ in range(12):
        world.tick()
        with world.database.read() as session:
            running = [run.owner for run in ingests.ingesting(session)]
        world.end_ingest(min(running, key=started(world).index))
    order = "".join(tenant_of[id] for id in started(world))
    assert order == "abc" * 4
    assert [id for id in started(world) if tenant_of[id] == "c"] == queues["c"]


def test_tenant_that_is_given_a_place_has_begun_last() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    began = {"a": at, "b": at - timedelta(hours=1)}
    waiting = [("b", "b1"), ("b", "b2"), ("a", "a1")]
    assert take_turns(waiting, {"a": 1}, began, 3) == ["b1", "a1"]


def test_turns_survive_a_restart_of_the_dispatcher(world: World) -> None:
    a, b = ([world.add_dataset(tenant=tenant) for _ in range(3)] for tenant in "ab")
    world.tick()
    assert started(world) == [a[0], b[0], a[1]]
    world.restart()
    world.end_ingest(a[0])
    world.end_ingest(b[0])
    world.tick()
    assert started(world)[3:] == [b[1], a[2]]


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    pending=st.lists(st.sampled_from("abcd"), max_size=12),
    running=st.lists(st.sampled_from("abcd"), max_size=3),
    slots=st.integers(1, 5),
)
def test_due_ingests_fill_the_slots_evenly(
    world: World, pending: list[str], running: list[str], slots: int
) -> None:
    with world.database.write() as session:
        session.query(IngestRun).delete()
        session.query(Dataset).delete()
    tenants = {world.add_dataset(tenant=tenant): tenant for tenant in pending}
    for tenant in running:
        world.add_dataset("ingesting", tenant=tenant)
    with world.database.read() as session:
        due = ingests.awaiting_ingest(session, slots)
    counts = {tenant: running.count(tenant) for tenant in "abcd"}
    each = max(1, slots - 1)
    room = [min(pending.count(tenant), max(0, each - counts[tenant])) for tenant in "abcd"]
    assert len(due) == min(sum(room), max(0, slots - len(running)))
    left = list(tenants)
    for dataset in due:
        tenant = tenants[dataset]
        assert counts[tenant] == min(counts[tenants[other]] for other in left)
        assert dataset == next(id for id in left if tenants[id] == tenant)
        left.remove(dataset)
        counts[tenant] += 1


def test_refresh_has_its_own_tries_and_turn(world: World) -> None:
    """Failures of earlier ingests do not count, and a data set that is refreshed is not first for its age."""
    dataset = world.add_dataset()
    world.tick()
    world.executor.end(world.run_id(dataset), 1)
    world.tick(times=2)
    world.end_ingest(dataset, 2)
    world.tick(100)
    others = [world.add_dataset() for _ in range(2)]
    world.tick(100)
    with world.database.write() as session:
        ingests.request_ingest(session, session.get_one(Dataset, dataset), "tok_1")
        session.get_one(Dataset, dataset).ingest_requested_at = world.now()
    waiting = world.add_dataset()
    world.tick()
    assert started(world)[2:] == others
    world.end_ingest(others[0])
    world.end_ingest(others[1])
    for number in (3, 4):
        world.tick()
        assert world.dataset(dataset).refresh_state == "ingesting"
        world.executor.end(world.run_id(dataset, number), 1)
        world.tick()
    assert started(world)[4:6] == [dataset, waiting]
    ended = world.dataset(dataset)
    assert (ended.state, ended.refresh_state) == ("ready", "failed")
    assert (ended.refresh_error or {})["type"] == "driver-ended"


def test_end_of_an_earlier_ingest_is_discarded(world: World) -> None:
    dataset = world.add_dataset()
    world.tick()
    with world.database.write() as session:
        assert ingests.end_ingest(session, dataset, 1, DatasetState.PENDING)
    world.tick()
    with world.database.write() as session:
        assert not ingests.end_ingest(session, dataset, 1, DatasetState.FAILED)
    assert world.dataset(dataset).state == "ingesting"


def test_ingest_of_a_deleted_data_set_neither_begins_nor_ends(world: World) -> None:
    reading = world.add_dataset()
    world.tick()
    waiting = world.add_dataset()
    with world.database.write() as session:
        for dataset in (reading, waiting):
            session.get_one(Dataset, dataset).deleted_at = world.now()
        session.flush()
        assert ingests.begin_ingest(session, waiting, "a hash") is None
        assert not ingests.end_ingest(session, reading, 1, DatasetState.READY)


@pytest.mark.parametrize("seconds", [1700, 1900])
def test_ingest_without_progress_is_ended_and_tried_again(world: World, seconds: int) -> None:
    dataset = world.add_dataset()
    world.tick(times=2)
    with world.database.write() as session:
        run = session.get_one(IngestRun, (dataset, 1))
        run.state = "running"
        run.progressed_at = world.now()
        run.progress_reported_at = world.now() + timedelta(seconds=seconds)
    world.tick(times=2)
    hangs = seconds >= world.settings.hang_seconds
    assert world.executor.is_running(world.run_id(dataset)) is not hangs
    assert len(started(world)) == (2 if hangs else 1)
    error = world.ingest_run(dataset).error
    if hangs:
        assert error is not None
        assert error["type"] == "hang"
        assert "DASL_HANG_SECONDS" in error["message"]
    else:
        assert error is None


def test_ingest_that_reports_no_progress_is_left_alone(world: World) -> None:
    dataset = world.add_dataset()
    world.tick()
    with world.database.write() as session:
        session.get_one(IngestRun, (dataset, 1)).progressed_at = world.now()
    world.tick(10_000)
    assert world.executor.is_running(world.run_id(dataset))


def test_ingests_that_do_not_reach_the_api_are_tried_again_after_a_pause(world: World) -> None:
    """However often: an outage of the API must not fail a data set."""
    dataset = world.add_dataset()
    world.tick()
    for number in range(1, 5):
        world.executor.end(world.run_id(dataset, number), UNDELIVERED_EXIT_CODE)
        world.tick()
        world.tick(110)
        assert world.dataset(dataset).state == "pending"
        other = world.add_dataset()
        world.tick()
        assert started(world)[-1] == other, "it does not block others"
        world.end_ingest(other)
        world.tick(10)
        assert world.executor.is_running(world.run_id(dataset, number + 1))
    error = world.ingest_run(dataset).error or {}
    assert (error["type"], "DASL_API_URL" in error["message"]) == ("reports-undelivered", True)
    for number, state in ((5, "ingesting"), (6, "failed")):
        world.executor.end(world.run_id(dataset, number), 1)
        world.tick(times=2)
        assert world.dataset(dataset).state == state, "failures of the ingest itself count"
