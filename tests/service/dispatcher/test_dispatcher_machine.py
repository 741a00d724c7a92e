"""State machine test: no order of user requests, process deaths and Ray outages loses anything.

Hypothesis generates the sequence. Users and drivers call the real API, which may die just before or just
after a commit, and retry as their clients do; the fake executor runs real processes, and the test has its
own clock.
"""

import itertools
from contextlib import suppress
from typing import Any, Literal

import pytest
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
from sqlalchemy.orm import Session

from service import lifecycle
from service.db.models import Attempt, Event, Job
from service.states import LIVE_ATTEMPT, TERMINAL, TRANSITIONS, JobStatus
from tests.service.dispatcher.test_dispatcher_crashes import Crash, Death
from tests.support.api_under_test import Api
from tests.support.dispatcher_world import World

pytestmark = pytest.mark.dialect(slow="postgresql")

ENOUGH_ROUNDS = 60
Moment = Literal["before", "after"] | None
moments = st.sampled_from([None, None, None, "before", "after"])


class ApiDied(Exception):
    """Death of the API's process, which leaves the client without an answer."""


class Story(RuleBasedStateMachine):
    """All events around the dispatcher, one at a time."""

    world: World
    api: Api
    jobs = Bundle("jobs")
    numbers = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        # In idempotency keys; `id(self)` may be that of an earlier story, whose job would be answered.
        self.number = next(self.numbers)
        self.accepted: list[str] = []
        self.submissions: dict[str, tuple[dict[str, Any], str]] = {}
        self.deaf: set[str] = set()  # jobs whose drivers never end by themselves
        self.ended: dict[str, str] = {}
        self.steps = itertools.count(1)
        self.world.restart()

    # --- users

    @initialize(target=jobs, deaf=st.booleans())
    def begin(self, deaf: bool) -> str:
        job = self.submit(1, 0, deaf, None)
        assert isinstance(job, str)
        return job

    # Few jobs, so that many events concern each one.
    @precondition(lambda self: len(self.accepted) < 3)
    @rule(
        target=jobs,
        workers=st.integers(1, 2),
        priority=st.integers(-1, 1),
        deaf=st.booleans(),
        hours=st.sampled_from([24.0, 0.05]),
        death=moments,
    )
    def submit(
        self, workers: int, priority: int, deaf: bool, death: Moment, hours: float = 24.0
    ) -> str:
        spec = {
            "name": f"job {len(self.accepted)}",
            "dataset": "emoji",
            "priority": priority,
            "resources": {
                "workers": workers,
                "cpus_per_worker": 1,
                "max_restarts": 2,
                "max_hours": hours,
            },
        }
        key = f"{self.number}-{len(self.accepted)}"
        answer = self.ask("/v1/jobs", spec, death, {"Idempotency-Key": key})
        assert answer.status_code == 201, answer.text
        job = str(answer.json()["id"])
        assert job not in self.accepted
        self.accepted.append(job)
        self.submissions[job] = (spec, key)
        if deaf:
            self.deaf.add(job)
        return job

    @rule(job=jobs)
    def submit_again(self, job: str) -> None:
        """Repeat a submission, as after a lost answer, at any later time."""
        spec, key = self.submissions[job]
        answer = self.ask("/v1/jobs", spec, None, {"Idempotency-Key": key})
        assert (answer.status_code, answer.json()["id"]) == (201, job)

    @rule(job=jobs, wish=st.sampled_from(["cancel", "pause", "resume"]), death=moments)
    def wish(self, job: str, wish: str, death: Moment) -> None:
        answer = self.ask(f"/v1/jobs/{job}/{wish}", None, death)
        assert answer.status_code in (202, 409), answer.text

    @rule(job=jobs)
    def pause_and_resume(self, job: str) -> None:
        self.wish(job, "pause", None)
        self.world.tick(20, times=3)
        self.wish(job, "resume", None)

    def ask(
        self, path: str, body: Any, death: Moment, headers: dict[str, str] | None = None
    ) -> Any:
        """Send a POST request, and repeat it if the API died."""
        with pytest.MonkeyPatch.context() as patch:
            if death is not None:
                writer = self.api.database.writer
                patch.setattr(
                    self.api.database, "writer", lambda **kind: _mortal(writer(**kind), death)
                )
            with suppress(ApiDied):
                return self.api.client.post(path, json=body, headers=headers)
        return self.api.client.post(path, json=body, headers=headers)

    # --- the dispatcher

    @rule(seconds=st.sampled_from([2, 40]))
    def round(self, seconds: int) -> None:
        self.world.tick(seconds)

    @rule(job=jobs)
    def go_on(self, job: str) -> None:
        """Run two rounds; the driver, if any, sends requests and saves a checkpoint."""
        for _ in range(2):
            self.world.tick(20)
            self.speak(job)
        self.save(job)

    @rule(rounds=st.integers(1, 3))
    def stop_the_service(self, rounds: int) -> None:
        """Stop the dispatcher, which lets attempts save, and start another one."""
        self.world.dispatcher.begin_shutdown()
        self.world.tick(2, times=rounds)
        self.world.restart()

    @rule(at=st.integers(0, 25), holder=st.sampled_from(["first", "second"]))
    def round_in_which_it_dies(self, at: int, holder: str) -> None:
        """Kill the dispatcher just before or after a commit or a call; start it or another one again."""
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

    @rule(job=jobs, death=moments)
    def speak(self, job: str, death: Moment = None) -> None:
        running = self.world.executor.is_running(self.newest_run(job))
        if running and self.post(job, "start", {}, death):
            self.post(job, "heartbeat", {"progress": {"step": next(self.steps)}}, death)

    @rule(job=jobs, death=moments)
    def save(self, job: str, death: Moment = None) -> None:
        number = self.world.job(job).attempt
        if number and self.world.attempt(job, number).state == "running":
            step = next(self.steps)
            folder = self.api.context.storage.attempt_uri(job, number)
            file = {"name": "backbone.safetensors", "size": 1, "sha256": "0" * 64}
            body = {"step": step, "epoch": 1.0, "uri": f"{folder}/step-{step}", "files": [file]}
            self.post(job, "checkpoints", body, death)

    @rule(job=jobs, outcome=st.sampled_from(["succeeded", "failed", "as desired"]), death=moments)
    def finish(self, job: str, outcome: str, death: Moment = None) -> None:
        """Report the end and exit, as a driver does."""
        now = self.world.job(job)
        name = self.newest_run(job)
        if not self.world.executor.is_running(name) or job in self.deaf:
            return
        if outcome == "as desired":
            with self.world.database.read() as session:
                desired = lifecycle.desired_state(now, session.get_one(Attempt, (job, now.attempt)))
            outcome = {"run": "succeeded", "pause": "paused", "cancel": "cancelled"}[desired]
        error = {"type": "x", "message": "broke"} if outcome == "failed" else None
        if self.post(job, "finish", {"outcome": outcome, "error": error}, death):
            self.world.executor.end(name, 0)

    def post(self, job: str, word: str, body: dict[str, Any], death: Moment) -> bool:
        """Send a request of the job's newest driver; if its attempt is over, end it and return `False`."""
        name = self.newest_run(job)
        headers = {"Authorization": f"Bearer {self.world.executor.envs[name]['DASL_WORKER_TOKEN']}"}
        answer = self.ask(f"/worker/v1/runs/{name}/{word}", body, death, headers)
        if answer.is_success:
            return True
        assert answer.json()["type"] == "stale-attempt", answer.text
        if self.world.executor.is_running(name):
            self.world.executor.end(name, 0)
        return False

    def newest_run(self, job: str) -> str:
        """Return the submission id of a job's newest attempt; empty if it has none."""
        number = self.world.job(job).attempt
        return self.world.run_id(job, number) if number else ""

    @rule(job=jobs)
    def kill(self, job: str) -> None:
        name = self.newest_run(job)
        if self.world.executor.is_running(name):
            self.world.executor.kill(name)

    # --- Ray

    @rule(rounds=st.integers(1, 3))
    def go_away_for_a_while(self, rounds: int) -> None:
        self.world.executor.away = True
        self.world.tick(20, times=rounds)
        self.world.executor.away = False

    @rule()
    def lose_everything(self) -> None:
        self.world.executor.lose_everything()

    # --- invariants

    @invariant()
    def history_is_consistent(self) -> None:
        with self.world.database.read() as session:
            begun = select(Job).where(Job.id >= min(self.accepted, default=""))
            rows = session.scalars(begun).all()
            assert {job.id for job in rows} == set(self.accepted), "a job is lost, or there twice"
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
        """Check that every job ends or stays paused once everything works again."""
        world = self.world
        for _ in range(ENOUGH_ROUNDS):
            statuses = {job: world.status(job) for job in self.accepted}
            if all(s in TERMINAL or s == JobStatus.PAUSED for s in statuses.values()):
                break
            for job in self.accepted:
                self.speak(job)
                self.finish(job, "as desired")
                if job in self.deaf:
                    self.wish(job, "cancel", None)
            world.tick(40)
        else:
            raise AssertionError(f"not all came to an end: {statuses}")
        world.tick(40)
        world.tick(40)
        running = [name for name in world.executor.submitted if world.executor.is_running(name)]
        assert not running, "processes of jobs that have ended"
        self.history_is_consistent()
        for job in self.accepted:
            self.wish(job, "cancel", None)


def _mortal(session: Session, moment: Moment) -> Session:
    commit = session.commit

    def dies() -> None:
        if moment == "after":
            commit()
        raise ApiDied

    session.commit = dies  # type: ignore[method-assign]
    return session


@pytest.fixture
def story(world: World, api: Api) -> type[Story]:
    class OfThisWorld(Story):
        pass

    api.dataset("emoji")
    OfThisWorld.world, OfThisWorld.api = world, api
    return OfThisWorld


@pytest.mark.hypothesis
def test_random_events_lose_no_job(story: type[Story]) -> None:
    # `make test-explore` tells other stories.
    run_state_machine_as_test(
        story,
        settings=settings(
            max_examples=4, stateful_step_count=30, suppress_health_check=list(HealthCheck)
        ),
    )
