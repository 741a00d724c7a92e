"""Fair share: weights, decay, the order of the queue, and the ledger of use."""

import heapq
import random
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from itertools import count, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from service import ids
from service.db.models import Attempt, Job, Tenant, Usage
from service.scheduling import repository as scheduling
from service.scheduling import window
from service.scheduling.fair_share import Account, Shares, Turns, Use, Waiting, decayed, in_order
from service.scheduling.packing import Demand, Worker
from tests.support.dispatcher_world import World

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
ONE_GPU = Demand(1, Worker(1, 1))
DAY = timedelta(days=1)


@given(st.lists(st.integers(1, 8), min_size=1, max_size=5))
def test_jobs_are_started_in_proportion_to_weights(weights: list[int]) -> None:
    names = {str(n): weight for n, weight in enumerate(weights)}
    queues = {
        Account(name, None): iter([Waiting(f"{name}-{n:05}", ONE_GPU) for n in range(1000)])
        for name in names
    }
    total = 20 * sum(weights)
    order = islice(in_order(Shares(names), queues, Turns(), BEGAN), total)
    started = Counter(job.split("-")[0] for job in order)
    assert all(abs(started[name] - 20 * weight) <= 8 for name, weight in names.items())


@pytest.mark.parametrize("seed", range(3))
def test_use_over_a_long_time_is_in_proportion_to_weights(seed: int) -> None:
    """Eight GPUs for 2,000 hours; whenever jobs end, the first ones of the order start."""
    rng, weights = random.Random(seed), {"a": 1.0, "b": 2.0, "c": 5.0}
    past, used = dict.fromkeys(weights, 0.0), dict.fromkeys(weights, 0.0)
    numbers = count()
    running: list[tuple[float, int, str]] = []
    now = 0.0
    while now < 2000:
        shares = Shares(weights, defaultdict(float, past))
        for _, _, tenant in running:
            shares.charge(Account(tenant, None), ONE_GPU)
        queues = {
            Account(name, None): iter([Waiting(f"{name}{n}", ONE_GPU) for n in range(8)])
            for name in weights
        }
        moment = BEGAN + timedelta(hours=now)
        for job in islice(in_order(shares, queues, Turns(), moment), 8 - len(running)):
            heapq.heappush(running, (now + rng.uniform(0.5, 8), next(numbers), job[0]))
        elapsed = running[0][0] - now
        for name in weights:
            gpus = sum(tenant == name for _, _, tenant in running)
            past[name] = decayed(past[name], timedelta(hours=elapsed), DAY) + gpus * elapsed
            used[name] += gpus * elapsed
        now, _, _ = heapq.heappop(running)
    total = sum(used.values())
    assert all(abs(used[name] / total - weight / 8) < 0.03 for name, weight in weights.items())


@given(st.lists(st.tuples(st.integers(1, 8), st.sampled_from("ab"), st.sampled_from("xyz"))))
def test_order_is_by_use_of_tenants_then_of_accounts_then_by_age(
    jobs: list[tuple[int, str, str]],
) -> None:
    """Against a direct calculation: the tenant with the least use, of it the account, and its oldest job."""
    queues = defaultdict[Account, list[Waiting]](list)
    for number, (gpus, tenant, token) in enumerate(jobs):
        job = Waiting(f"{number:05}", Demand(gpus, Worker(0, 1)))
        queues[Account(tenant, token)].append(job)
    order = in_order(
        Shares(), {account: iter([*queue]) for account, queue in queues.items()}, Turns(), BEGAN
    )
    use, expected = Counter[str | Account](), list[str]()
    while any(queues.values()):
        waiting = [account for account, queue in queues.items() if queue]
        first = {
            tenant: min((use[each], queues[each][0], each) for each in waiting if each[0] == tenant)
            for tenant in {account.tenant for account in waiting}
        }
        _, job, account = min(first.values(), key=lambda each: (use[each[2].tenant], each[1]))
        queues[account].remove(job)
        expected.append(job.job_id)
        use.update({account: job.demand.gpus, account.tenant: job.demand.gpus})
    assert list(order) == expected


def test_oldest_job_of_a_token_comes_first_after_a_day() -> None:
    """Backfilled jobs of its tenant keep the tenant's use high, so its turn would never come."""
    turns = Turns()

    def order(hours: float, oldest: str = "1") -> list[str]:
        shares = Shares()
        shares.charge(Account("a", "t"), Demand(64, Worker(1, 1)))
        queues = {
            Account("a", "t"): iter([Waiting(oldest, ONE_GPU), Waiting("7", ONE_GPU)]),
            Account("b", "u"): iter([Waiting(f"3{hours}", ONE_GPU)]),
        }
        return list(in_order(shares, queues, turns, BEGAN + timedelta(hours=hours)))

    assert order(0)[1:] == order(24)[1:] == ["1", "7"]
    assert order(24.1) == ["1", "324.1", "7"]
    assert order(25, oldest="2") == ["325", "2", "7"], (
        "the turn of the next job starts from the beginning"
    )


@given(st.floats(0, 1e9), st.floats(0, 1e4), st.floats(0, 1e4))
def test_use_only_decays(amount: float, first: float, more: float) -> None:
    ages = timedelta(hours=first), timedelta(hours=first + more)
    earlier, later = (decayed(amount, age, DAY) for age in ages)
    assert amount >= earlier >= later >= 0


def test_use_of_the_past_and_of_the_token_decides() -> None:
    shares = Shares()
    shares.add([Use(Account("a", "t"), BEGAN, 3600.0, 0.0)], BEGAN + DAY, DAY)
    assert shares.of_account[Account("a", "t")] == 0.5
    queues = {
        Account("a", "t"): iter([Waiting("1", ONE_GPU)]),
        Account("a", "u"): iter([Waiting("2", ONE_GPU)]),
        Account("b", "v"): iter([Waiting("3", ONE_GPU)]),
    }
    assert list(in_order(shares, queues, Turns(), BEGAN)) == ["3", "2", "1"]


def test_many_jobs_of_one_tenant_do_not_hide_those_of_another(world: World) -> None:
    many = [world.add_job(tenant="a") for _ in range(window.ALWAYS + 5)]
    other = world.add_job(tenant="b")
    with world.database.read() as session:
        first = window.FairQueue(DAY).first(session, [], world.now())
    assert first[:2] == [many[0], other]


def test_weights_of_tenants_are_read(world: World) -> None:
    with world.database.write() as session:
        session.add(Tenant(name="b", weight=2.0, created_at=world.now()))
    first, *_ = (world.add_job(tenant="a") for _ in range(3))
    own = [world.add_job(tenant="b") for _ in range(3)]
    with world.database.read() as session:
        order = window.FairQueue(DAY).first(session, [], world.now())
    assert order[:4] == [first, *own[:2], order[3]]


@pytest.mark.dialect
def test_two_tokens_of_a_user_share_its_use(world: World) -> None:
    user = ids.new_id("usr")
    used, fresh, other = world.add_token(user), world.add_token(user), world.add_token()
    with world.database.write() as session:
        hour = world.now().replace(minute=0, second=0, microsecond=0)
        usage = {"tenant": "default", "hour": hour, "tags": {}, "cpu_seconds": 0.0}
        session.add(Usage(job_id="1", token_id=used, account_id=user, gpu_seconds=7200.0, **usage))
        session.add(
            Usage(job_id="2", token_id=other, account_id=other, gpu_seconds=3600.0, **usage)
        )
    hers = world.add_job(token_id=fresh, user_id=user)
    theirs = world.add_job(token_id=other)
    with world.database.read() as session:
        assert window.FairQueue(DAY).first(session, [], world.now()) == [theirs, hers]


@pytest.mark.dialect
def test_ledger_has_exactly_the_confirmed_runtime(world: World) -> None:
    job = world.add_job(workers=2, cpus_per_worker=1)
    world.tick()
    with world.database.write() as session:
        session.get_one(Attempt, (job, 1)).created_at = datetime.now(UTC) - timedelta(minutes=1)
    world.worker_starts(job)
    for step in range(3):
        world.worker_sends_heartbeat(job, progress={"step": step})
    with world.database.read() as session:
        rows = session.scalars(select(Usage).where(Usage.job_id == job)).all()
        assert sum(row.cpu_seconds for row in rows) == 2 * world.attempt(job).ran_seconds > 0
        assert {(row.tenant, row.gpu_seconds) for row in rows} == {("default", 0.0)}


def test_attempt_with_fewer_workers_is_charged_for_those_alone(world: World) -> None:
    job = world.add_job(workers=2, tenant="a")
    with world.database.write() as session:
        session.get_one(Job, job).workers = 1
    with world.database.read() as session:
        assert scheduling.demands(session, [job])[job].cpus == 1
    world.tick()
    with world.database.write() as session:
        session.get_one(Attempt, (job, 1)).created_at = datetime.now(UTC) - timedelta(minutes=1)
    world.worker_starts(job)
    with world.database.read() as session:
        row = session.scalars(select(Usage)).one()
        assert row.cpu_seconds == world.attempt(job).ran_seconds > 0


def test_quota_of_a_tenant_limits_all_its_tokens(world: World) -> None:
    with world.database.write() as session:
        session.add(Tenant(name="default", max_running_jobs=1, created_at=world.now()))
    first, second = (world.add_job(token_id=world.add_token()) for _ in range(2))
    other = world.add_job(tenant="b")
    world.tick()
    assert [world.status(job) for job in (first, second, other)] == [
        "starting",
        "queued",
        "starting",
    ]
    (message,) = world.events(second, "waiting")
    assert "quota of its tenant: max_running_jobs is 1" in message
