"""Upkeep of tables: what is removed, and what stays."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select

from service import ids
from service.db.models import IdempotencyKey, Job, SearchQuery, Token, Usage
from service.dispatcher import housekeeping
from service.dispatcher.housekeeping import KEEP_ANSWERS, KEEP_LOGIN_TOKENS, KEEP_USE, Housekeeping
from service.ledger import repository as ledger
from service.storage import repository as storage
from service.tasks.questions import repository as questions
from service.tokens import repository as tokens
from tests.support.clocks import something_happens
from tests.support.dispatcher_world import World
from tests.support.statements import plan_of, recorded_statements

HOUR = timedelta(hours=1)


def change_token(world: World, token: str, **columns: Any) -> None:
    with world.database.write() as session:
        row = session.get_one(Token, token)
        for name, value in columns.items():
            setattr(row, name, value)


def add_use(world: World, job: str, hour: datetime) -> None:
    with world.database.write() as session:
        usage = {"tenant": "default", "tags": {}, "gpu_seconds": 1.0, "cpu_seconds": 1.0}
        session.add(Usage(job_id=job, hour=hour, account_id="tok", **usage))


def use_in(world: World) -> list[str]:
    with world.database.read() as session:
        query = select(Usage.job_id).where(Usage.tenant != "other").order_by(Usage.job_id)
        return list(session.scalars(query))


def keep_house(world: World) -> None:
    # Else nothing shows that the clock is right.
    something_happens(world.database, world.now())
    Housekeeping(world.dispatcher._context).round()


def test_tokens_of_logins_are_removed_long_after_their_expiry(world: World) -> None:
    user = ids.new_id("usr")
    old, recent, busy, created, endless = (world.add_token(user) for _ in range(5))
    long_ago = world.now() - KEEP_LOGIN_TOKENS - HOUR
    for token in (old, busy):
        change_token(world, token, from_login=True, expires_at=long_ago)
    change_token(world, recent, from_login=True, expires_at=long_ago + 2 * HOUR)
    change_token(world, endless, from_login=True)
    change_token(world, created, expires_at=long_ago)
    ended = world.add_job(token_id=old, user_id=user)
    world.cancel(ended)
    waits = world.add_job(token_id=busy, user_id=user, workers=1000)
    world.tick()
    keep_house(world)
    with world.database.read() as session:
        assert set(session.scalars(select(Token.id))) == {recent, busy, created, endless}
        assert session.get_one(Job, ended).token_id == old
    world.cancel(waits)
    world.tick()
    with world.database.write() as session:
        assert tokens.remove_expired_logins(session, world.now() - KEEP_LOGIN_TOKENS, 100) == 1


@pytest.mark.parametrize(("half_life", "left"), [(None, ["kept"]), (8760, ["kept", "old"])])
def test_old_use_is_removed_unless_a_long_half_life_needs_it(
    world: World, half_life: int | None, left: list[str]
) -> None:
    if half_life is not None:
        world.dispatcher._context.settings.fair_share_half_life_hours = half_life
    add_use(world, "old", world.now() - KEEP_USE - HOUR)
    add_use(world, "kept", world.now() - KEEP_USE + HOUR)
    world.tick()
    keep_house(world)
    assert use_in(world) == left


@pytest.mark.dialect
def test_use_is_removed_in_batches_the_oldest_first(world: World) -> None:
    now = world.now()
    for number in range(3):
        add_use(world, str(number), now - (9 - number) * HOUR)
    with world.database.write() as session:
        assert ledger.remove_before(session, now, 2) == 2
    assert use_in(world) == ["2"]


def add_answer(world: World, key: str, created_at: datetime) -> None:
    with world.database.write() as session:
        row = {"tenant": "default", "body_hash": "x", "answer": {"id": "job_1"}}
        session.add(IdempotencyKey(key=key, created_at=created_at, **row))


def keys_in(world: World) -> list[str]:
    with world.database.read() as session:
        return list(session.scalars(select(IdempotencyKey.key).order_by(IdempotencyKey.key)))


@pytest.mark.dialect
def test_old_idempotency_keys_are_removed_in_batches_the_oldest_first(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.tick()
    long_ago = world.now() - KEEP_ANSWERS
    for age in (3, 2, 1, -1):
        add_answer(world, f"age {age}", long_ago - age * HOUR)
    monkeypatch.setattr(housekeeping, "_ROWS_AT_ONCE", 2)
    upkeep = Housekeeping(world.dispatcher._context)
    something_happens(world.database, world.now())
    upkeep.round()
    assert keys_in(world) == ["age -1", "age 1"]
    # A full batch is followed by another one at once.
    upkeep.round()
    assert keys_in(world) == ["age -1"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_clock_that_jumps_removes_no_idempotency_key(world: World) -> None:
    """The repeated request of a client would start a second job."""
    world.tick()
    add_answer(world, "recent", world.now())
    context = world.dispatcher._context
    ahead = world.now() + 2 * KEEP_ANSWERS
    Housekeeping(replace(context, clock=lambda: ahead, renewed_at=ahead)).round()
    assert keys_in(world) == ["recent"]


def test_questions_of_a_killed_process_are_removed(world: World) -> None:
    """Their images would stay in the database, and later questions to the embedding would be refused as too many."""
    world.tick()
    for age in (2 * questions.ABANDONED, questions.ABANDONED / 2):
        query = SearchQuery(
            id=ids.new_id("qry"),
            embedding_id="mrun_1",
            k=3,
            image=b"...",
            created_at=world.now() - age,
        )
        with world.database.write() as session:
            questions.add(session, query)
    keep_house(world)
    with world.database.read() as session:
        assert questions.count_open(session, "mrun_1") == 1


# SQLite only: PostgreSQL's planner scans a table as small as this one.
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_removal_of_idempotency_keys_reads_only_old_ones(world: World) -> None:
    """Answers are large, and most rows are recent."""
    with world.database.write() as session:
        with recorded_statements(world.database) as statements:
            assert storage.remove_answers(session, world.now(), 10) == 0
        (removal,) = (each for each in statements if each[0].startswith("DELETE"))
        steps = " ".join(plan_of(session, *removal))
    assert "ix_idempotency_keys_created_at" in steps
    assert "SCAN idempotency_keys" not in steps
