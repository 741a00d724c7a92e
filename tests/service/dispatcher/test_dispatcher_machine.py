"""People, dispatchers that die, drivers that die, a Ray that goes away: in any order, nothing is lost.

Hypothesis makes the story; the fake executor runs real processes, the clock is the story's own.
"""

from __future__ import annotations

import itertools
from contextlib import suppress

import pytest
from dispatcher_world import World
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import select
from test_dispatcher_crashes import Crash, Death

from service.db.models import Attempt, Event, Job
from service.lifecycle import LIVE_ATTEMPT, TERMINAL, TRANSITIONS, JobStatus, StaleAttempt

ENOUGH_ROUNDS = 60


class Story(RuleBasedStateMachine):
    """Whatever happens around the dispatcher, one thing at a time."""

    world: World
    jobs = Bundle("jobs")

    def __init__(self) -> None:
        super().__init__()
        self.accepted: list[str] = []
        self.deaf: set[str] = set()  # jobs whose drivers never end by themselves
        self.ended: dict[str, str] = {}
        self.steps = itertools.count(1)
        self.world.restart()

    # --- people

    @initialize(target=jobs, deaf=st.booleans())
    def begin(self, deaf: bool) -> str:
        return self.submit(1, 0, deaf)

    # Few, so that much happens to each.
    @precondition(lambda self: len(self.accepted) < 3)
    @rule(target=jobs, workers=st.integers(1, 2), priority=st.integers(-1, 1), deaf=st.booleans())
    def submit(self, workers: int, priority: int, deaf: bool) -> str:
        job = self.world.add_job(workers=workers, priority=priority, max_restarts=2)
        self.accepted.append(job)
        if deaf:
            self.deaf.add(job)
        return job

    @rule(job=jobs)
    def cancel(self, job: str) -> None:
        self.world.cancel(job)

    @rule(job=jobs)
    def pause(self, job: str) -> None:
        self.world.pause(job)

    @rule(job=jobs)
    def resume(self, job: str) -> None:
        self.world.resume(job)

    @rule(job=jobs)
    def pause_and_resume(self, job: str) -> None:
        self.world.pause(job)
        for _ in range(3):
            self.world.tick(20)
        self.world.resume(job)

    # --- the dispatcher

    @rule(seconds=st.sampled_from([2, 40]))
    def round(self, seconds: int) -> None:
        self.world.tick(seconds)

    @rule(job=jobs)
    def go_on(self, job: str) -> None:
        """Two rounds, and a driver that speaks and saves where there is one."""
        for _ in range(2):
            self.world.tick(20)
            self.speak(job)
        self.save(job)

    @rule(at=st.integers(0, 25), holder=st.sampled_from(["first", "second"]))
    def round_in_which_it_dies(self, at: int, holder: str) -> None:
        """Just before or after a commit or a call; another one, or the same anew, follows."""
        death, world = Death(at), self.world
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world.database, "write", death.around_commits(world.database.write))
            for name in ("submit", "status", "stop", "logs", "cluster"):
                patch.setattr(
                    world.executor, name, death.around_calls(getattr(world.executor, name))
                )
            with suppress(Crash):
                world.tick(3)
        world.restart(holder)

    # --- drivers and their ranks

    @rule(job=jobs)
    def speak(self, job: str) -> None:
        number = self.world.job(job).attempt
        if self.world.executor.is_running(f"{job}-{number}"):
            try:
                self.world.worker_starts(job, number)
                self.world.worker_beats(job, number, {"step": next(self.steps)})
            except StaleAttempt:
                self.world.executor.end(f"{job}-{number}", 0)

    @rule(job=jobs)
    def save(self, job: str) -> None:
        number = self.world.job(job).attempt
        if number and self.world.attempt(job, number).state == "running":
            self.world.add_checkpoint(job, number, step=next(self.steps))

    @rule(job=jobs, outcome=st.sampled_from(["succeeded", "failed", "told"]))
    def finish(self, job: str, outcome: str) -> None:
        """As a driver does: it reports, then it ends."""
        now = self.world.job(job)
        name = f"{job}-{now.attempt}"
        if not self.world.executor.is_running(name) or job in self.deaf:
            return
        if outcome == "told":
            outcome = {"run": "succeeded", "pause": "paused", "cancel": "cancelled"}[now.desired]
        error = {"type": "x", "message": "broke"} if outcome == "failed" else None
        self.world.worker_finishes(job, outcome, now.attempt, error=error)  # type: ignore[arg-type]
        self.world.executor.end(name, 0)

    @rule(job=jobs)
    def kill(self, job: str) -> None:
        name = f"{job}-{self.world.job(job).attempt}"
        if self.world.executor.is_running(name):
            self.world.executor.kill(name)

    # --- Ray

    @rule(rounds=st.integers(1, 3))
    def go_away_for_a_while(self, rounds: int) -> None:
        self.world.executor.away = True
        for _ in range(rounds):
            self.world.tick(20)
        self.world.executor.away = False

    @rule()
    def lose_everything(self) -> None:
        self.world.executor.lose_everything()

    # --- what always holds

    @invariant()
    def history_is_consistent(self) -> None:
        with self.world.database.read() as session:
            rows = session.scalars(select(Job).where(Job.id.in_(self.accepted))).all()
            assert {job.id for job in rows} == set(self.accepted), "an accepted job is lost"
            for job in rows:
                events = session.scalars(
                    select(Event).where(Event.job_id == job.id).order_by(Event.seq)
                ).all()
                attempts = session.scalars(select(Attempt).where(Attempt.job_id == job.id)).all()
                self._check(job, list(events), list(attempts))
        submitted = self.world.executor.submitted
        assert len(submitted) == len(set(submitted)), "an attempt was handed in twice"

    def _check(self, job: Job, events: list[Event], attempts: list[Attempt]) -> None:
        assert [event.seq for event in events] == list(range(1, job.next_event))
        moves = [event.data for event in events if event.type == "status"]
        for before, after in itertools.pairwise(moves):
            assert after["from"] == before["to"]
            assert after["to"] in TRANSITIONS[JobStatus(after["from"])]
        assert moves[-1]["to"] == job.status
        live = [attempt.number for attempt in attempts if attempt.state in LIVE_ATTEMPT]
        assert live in ([], [job.attempt]), "two epochs live"
        if job.id in self.ended:
            assert job.status == self.ended[job.id], "a terminal status was left"
        if job.status in TERMINAL:
            self.ended[job.id] = job.status
            assert live == []

    def teardown(self) -> None:
        """Once everything works again, every job comes to its end or rests where it was paused."""
        world = self.world
        for _ in range(ENOUGH_ROUNDS):
            statuses = {job: world.status(job) for job in self.accepted}
            if all(s in TERMINAL or s == JobStatus.PAUSED for s in statuses.values()):
                break
            for job in self.accepted:
                self.speak(job)
                self.finish(job, "told")
                if job in self.deaf:
                    world.cancel(job)
            world.tick(40)
        else:
            raise AssertionError(f"not all came to an end: {statuses}")
        world.tick(40)
        world.tick(40)
        running = [name for name in world.executor.submitted if world.executor.is_running(name)]
        assert not running, "processes of jobs that have ended"
        self.history_is_consistent()
        for job in self.accepted:
            world.cancel(job)


@pytest.fixture
def story(world: World) -> type[Story]:
    class OfThisWorld(Story):
        pass

    OfThisWorld.world = world
    return OfThisWorld


def test_nothing_is_lost_whatever_happens(story: type[Story]) -> None:
    run_state_machine_as_test(
        story,
        settings=settings(
            max_examples=40,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
