"""The window of a long queue: its order, and the number of statements that a round takes."""

import random
from datetime import timedelta
from itertools import islice

import pytest

from service.scheduling import window
from service.scheduling.fair_share import Account, Shares, Turns, Waiting, in_order
from service.scheduling.packing import Demand, Worker
from tests.support.dispatcher_world import World
from tests.support.statements import recorded_statements

DAY = timedelta(days=1)
ONE_CPU = Demand(1, Worker(1, 0))
STATEMENTS = 14
"""The most that a round takes for its window, however many jobs and ranks there are."""


@pytest.mark.parametrize("priorities", [1, 40])
@pytest.mark.parametrize(("accounts", "refills"), [(1, 0), (8, 0), (30, 3)])
def test_number_of_statements_does_not_grow_with_the_queue(
    world: World, monkeypatch: pytest.MonkeyPatch, accounts: int, priorities: int, refills: int
) -> None:
    monkeypatch.setattr(window, "ALWAYS", 10)
    monkeypatch.setattr(window, "IN_TURN", 10)
    monkeypatch.setattr(window, "_REFILLS", refills)
    tokens = [world.add_token() for _ in range(accounts)]
    for number in range(80):
        world.add_job(priority=number // 2 % priorities, token_id=tokens[number % accounts])
    rounds = window.QueueWindow(DAY)
    for _ in range(4):
        with world.database.read() as session, recorded_statements(world.database) as statements:
            jobs = rounds.read(session, [], world.now())
        assert len({job.job_id for job in jobs}) == 20
        # A refill reads ids, changed numbers of workers, and specs that it meets for the first time.
        assert len(statements) <= STATEMENTS + 3 * refills


@pytest.mark.dialect
@pytest.mark.parametrize("seed", range(3))
def test_first_jobs_are_those_of_the_whole_queue_in_order(
    world: World, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(window, "ALWAYS", 12)
    rng = random.Random(seed)
    tokens = [None, *(world.add_token() for _ in range(4))]
    queue: dict[tuple[bool, int], dict[Account, list[Waiting]]] = {}
    for _ in range(60):
        account = Account(rng.choice("abb"), rng.choice(tokens))
        preemptible, priority = rng.random() < 0.2, rng.choice([0, 0, 0, 0, 1])
        job = world.add_job(
            tenant=account.tenant, token_id=account.id, preemptible=preemptible, priority=priority
        )
        of_rank = queue.setdefault((preemptible, -priority), {})
        of_rank.setdefault(account, []).append(Waiting(job, ONE_CPU))
    shares, expected = Shares(), list[str]()
    for rank in sorted(queue):
        queues = {account: iter(jobs) for account, jobs in queue[rank].items()}
        expected += islice(
            in_order(shares, queues, Turns(), world.now()), window.ALWAYS - len(expected)
        )
    with world.database.read() as session:
        assert window.FairQueue(DAY).first(session, [], world.now()) == expected


def test_long_queue_of_one_token_fills_the_window(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window, "ALWAYS", 10)
    short, long = world.add_token(), world.add_token()
    first = world.add_job(token_id=short)
    jobs = [world.add_job(token_id=long) for _ in range(30)]
    with world.database.read() as session:
        order = window.FairQueue(DAY).first(session, [], world.now())
    assert sorted(order) == sorted([first, *jobs[:9]])
