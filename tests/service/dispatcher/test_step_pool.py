"""Slow answers of Ray and of the store: a round is quick, and only what is slow waits."""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from service.db.models import Job
from service.dispatcher.context import LeaseLost
from service.dispatcher.executor import ExecutorUnavailable
from service.dispatcher.log_copier import LogCopier
from service.dispatcher.step_pool import Step, StepPool
from service.scheduling import repository as scheduling
from service.scheduling.nodes import Node
from service.scheduling.repository import AttemptView
from service.states import JobStatus
from tests.support.dispatcher_world import World
from tests.support.polling import wait_for

A_MOMENT = 0.05


class Calls:
    """Steps that record that they began; those with a gate wait until it is set."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.gates: dict[str, threading.Event] = {}
        self.errors: dict[str, Exception] = {}

    def steps(self, *keys: str) -> list[Step]:
        return [Step(key, self._run, f"job_{key}", "test this") for key in keys]

    def _run(self, item: str) -> None:
        key = item.removeprefix("job_")
        self.began.append(key)
        if key in self.gates:
            assert self.gates[key].wait(60)
        if key in self.errors:
            raise self.errors[key]


@pytest.fixture
def calls() -> Calls:
    return Calls()


def test_slow_step_delays_no_other_and_runs_once(calls: Calls) -> None:
    pool, gate = StepPool(A_MOMENT, 2), threading.Event()
    calls.gates["slow"] = gate
    assert pool.run(calls.steps("slow", "a", "b"))
    assert pool.run(calls.steps("slow", "a"))
    assert calls.began.count("slow") == 1
    assert calls.began.count("a") == 2
    assert pool.is_busy("slow")
    assert not pool.is_busy("a")
    gate.set()
    pool.close(wait=True)
    assert calls.began.count("slow") == 1


def test_steps_that_were_not_begun_are_the_first_of_the_next_call(calls: Calls) -> None:
    pool, gate = StepPool(A_MOMENT, 1), threading.Event()
    calls.gates["a"] = gate
    pool.run(calls.steps("a", "b", "c"))
    assert calls.began == ["a"]
    gate.set()
    wait_for(lambda: not pool.is_busy("a"))

    def all_began() -> bool:
        pool.run(calls.steps("a", "b", "c"))
        return len(calls.began) > 3

    wait_for(all_began)
    assert calls.began[:3] == ["a", "b", "c"]


def test_no_step_begins_once_ray_does_not_answer_one(calls: Calls) -> None:
    pool = StepPool(None, 1)
    calls.errors["a"] = ExecutorUnavailable("away")
    assert not pool.run(calls.steps("a", "b"))
    assert calls.began == ["a"]
    calls.errors.clear()
    assert pool.run(calls.steps("a", "b"))


def test_slow_step_that_ray_does_not_answer_is_told_in_the_next_call(calls: Calls) -> None:
    pool, gate = StepPool(A_MOMENT, 1), threading.Event()
    calls.gates["slow"], calls.errors["slow"] = gate, ExecutorUnavailable("away")
    assert pool.run(calls.steps("slow"))
    gate.set()
    wait_for(lambda: not pool.is_busy("slow"))
    assert not pool.run([])
    assert pool.run([])


class Locked(Exception):
    """The driver's error about a row that another session has locked."""

    sqlstate = "55P03"


def test_step_whose_row_was_locked_is_left_out_for_a_while(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = StepPool(None, 1)
    calls.errors["a"] = OperationalError("UPDATE jobs", {}, Locked("lock timeout"))
    for _ in range(2):
        assert pool.run(calls.steps("a", "b"))
    assert calls.began == ["a", "b", "b"]
    monkeypatch.setattr("service.dispatcher.step_pool._LOCKED_PAUSE_SECONDS", 0.0)
    assert pool.run(calls.steps("a"))
    assert calls.began[3:] == ["a"]


@pytest.mark.parametrize("error", [LeaseLost("lost"), ValueError("odd")])
def test_only_what_concerns_all_ends_the_round(calls: Calls, error: Exception) -> None:
    pool = StepPool(None, 1)
    calls.errors["a"] = error
    if isinstance(error, LeaseLost):
        with pytest.raises(LeaseLost):
            pool.run(calls.steps("a", "b"))
    else:
        assert pool.run(calls.steps("a", "b"))
    assert calls.began == ["a", "b"]


def rounds_until(world: World, condition: Callable[[], bool], *, logs: bool = False) -> None:
    """Run rounds of the main loop, and of the one that finalizes, until a condition holds."""

    def round_and_check() -> bool:
        world.main_round(1)
        if logs:
            world.dispatcher.background["logs"].run_once()
        return condition()

    wait_for(round_and_check)


def test_starts_that_ray_does_not_accept_yet_delay_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.executor.nodes[0] = Node("n", "127.0.0.1", 8, 0, 0, 0)
    running = world.start_job()
    gate, dispatcher = threading.Event(), world.restart(patience=A_MOMENT)
    slow, quick = world.add_job(priority=1), world.add_job()
    asked: list[str] = []
    submit = world.executor.submit

    def submit_slowly(
        name: str, command: str, env: Mapping[str, str], token: str, avoid: Collection[str]
    ) -> None:
        asked.append(name)
        if name.startswith(slow):
            assert gate.wait(60)
        submit(name, command, env, token, avoid)

    monkeypatch.setattr(world.executor, "submit", submit_slowly)
    world.cancel(running)
    jobs = (slow, quick)
    rounds_until(world, lambda: all(world.status(job) == JobStatus.STARTING for job in jobs))
    rounds_until(world, lambda: world.attempt(quick).state == "submitted")
    rounds_until(world, lambda: world.status(running) == JobStatus.CANCELLING)
    assert len(asked) == 2
    world.main_round(2)
    with world.database.read() as session:
        snapshot = scheduling.snapshot(session)
    assert snapshot is not None
    assert snapshot.at == world.now()
    assert world.attempt(slow).state == "created"
    assert sorted(asked) == sorted([world.run_id(slow), world.run_id(quick)]), "each one once"
    gate.set()
    rounds_until(world, lambda: world.attempt(slow).state == "submitted")
    world.executor.end(world.run_id(slow), 1)
    rounds_until(world, lambda: world.status(slow) == JobStatus.RETRY_WAIT)
    assert dispatcher.in_charge


def test_ingest_that_ray_does_not_accept_yet_is_submitted_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, asked, submit = threading.Event(), list[str](), world.executor.submit
    world.restart(patience=A_MOMENT)
    dataset = world.add_dataset()

    def submit_slowly(name: str, *rest: Any) -> None:
        asked.append(name)
        assert gate.wait(60)
        submit(name, *rest)

    monkeypatch.setattr(world.executor, "submit", submit_slowly)
    rounds_until(world, lambda: bool(asked))
    for _ in range(3):
        world.main_round(2)
    gate.set()
    rounds_until(world, lambda: world.ingest_run(dataset).state == "submitted")
    assert asked == [world.run_id(dataset)]


def test_run_that_starts_while_the_others_are_read_counts_as_submitted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, submitted = world.dispatcher._train, world.dispatcher._context.submitted
    live = policy.live

    def live_then_start(session: Session) -> Sequence[AttemptView]:
        found = live(session)
        submitted.add("by another thread")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(policy, "live", live_then_start)
        world.main_round(2)
    assert submitted == {"by another thread"}
    world.main_round(2)
    assert not submitted


def test_slow_copies_of_logs_delay_the_end_of_no_other_attempt(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.executor.nodes[0] = Node("n", "127.0.0.1", 2, 0, 0, 0)
    slow, ended = world.start_job(), world.start_job()
    waiting, gate, dispatcher = world.add_job(), threading.Event(), world.restart(patience=A_MOMENT)
    copy = LogCopier._copy
    copies: list[bool] = []

    def copy_slowly(logs: LogCopier, attempt: AttemptView, *, final: bool) -> int:
        if attempt.job_id == slow:
            copies.append(final)
            assert gate.wait(60)
        return copy(logs, attempt, final=final)

    monkeypatch.setattr(LogCopier, "_copy", copy_slowly)
    world.main_round(5)
    dispatcher.background["logs"].run_once()
    for job in (slow, ended):
        world.end_job(job, "succeeded")
    rounds_until(world, lambda: world.status(waiting) == JobStatus.STARTING, logs=True)
    assert world.attempt(ended).settled
    assert not world.attempt(slow).settled, "its log is being copied"
    assert copies == [False], "two threads never write one log"
    gate.set()
    rounds_until(world, lambda: world.attempt(slow).settled, logs=True)


# PostgreSQL only: SQLite locks no single rows.
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_locked_row_delays_itself_alone(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.dispatcher.context._LOCK_SECONDS", 0.05)
    world.executor.nodes[0] = Node("n", "127.0.0.1", 8, 0, 0, 0)
    running, locked = world.start_job(), world.add_job(priority=1)
    too_large, locked_too = (world.add_job(cpus_per_worker=100) for _ in range(2))
    world.ahead += timedelta(seconds=60)
    world.restart()
    with world.database.write() as session:
        session.execute(
            select(Job).where(Job.id.in_([locked, running, locked_too])).with_for_update()
        )
        others = [world.add_job() for _ in range(2)]
        world.tick()
        assert [world.status(job) for job in others] == [JobStatus.STARTING] * 2
        assert world.events(too_large, "waiting")
        assert not world.events(locked_too, "waiting")
        assert world.status(locked) == JobStatus.QUEUED
        assert "could not start this job: canceling statement due to lock timeout" in caplog.text
        assert not any(loop.failed_rounds for loop in world.dispatcher.background.values())
    monkeypatch.setattr("service.dispatcher.step_pool._LOCKED_PAUSE_SECONDS", 0.0)
    world.tick()
    assert world.status(locked) == JobStatus.STARTING
    assert world.events(locked_too, "waiting")
