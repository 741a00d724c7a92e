"""The job state machine: history stays consistent for requests in any order."""

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from sqlalchemy import select

from dasl_core.spec import Resources, versions
from service import ids, lifecycle, states
from service.db.models import Attempt, Checkpoint, Dataset, Event, Job, Metric
from service.db.session import Database
from service.runs import repository as runs
from service.runs.endings import Ending, Retry
from service.states import TERMINAL, TRANSITIONS, Desired, JobStatus, StaleAttempt, StopReason

pytestmark = pytest.mark.dialect

_count = itertools.count()


def make_job(database: Database, max_restarts: int = 1) -> str:
    now = datetime.now(UTC)
    job_id, dataset_id = ids.new_id("job"), ids.new_id("ds")
    resources = Resources(cpus_per_worker=1, gpus_per_worker=0, max_restarts=max_restarts)
    with database.write() as session:
        session.add(
            Dataset(
                id=dataset_id,
                tenant="default",
                name=dataset_id,
                uri="/data",
                state="ready",
                created_at=now,
                ingest_requested_at=now,
            )
        )
        session.flush()
        lifecycle.enqueue(
            session,
            Job(
                id=job_id,
                tenant="default",
                name="test",
                method="simclr",
                spec={},
                resolved={"resources": resources.model_dump()},
                tags={},
                spec_version=versions.current(),
                account_id="tok_1",
                dataset_id=dataset_id,
                created_at=now,
            ),
        )
    return job_id


def start(database: Database, job_id: str) -> int | None:
    with database.write() as session:
        attempt = lifecycle.start_attempt(session, job_id, f"hash-{next(_count)}")
        return None if attempt is None else attempt.number


def read_history(database: Database, job_id: str) -> tuple[Job, list[Event], list[Attempt]]:
    with database.read() as session:
        job = session.get_one(Job, job_id)
        events = session.scalars(
            select(Event).where(Event.job_id == job_id).order_by(Event.seq)
        ).all()
        attempts = session.scalars(
            select(Attempt).where(Attempt.job_id == job_id).order_by(Attempt.number)
        ).all()
        return job, list(events), list(attempts)


def check_history(job: Job, events: list[Event], attempts: list[Attempt]) -> None:
    assert [event.seq for event in events] == list(range(1, job.next_event))
    moves = [event.data for event in events if event.type == "status"]
    assert moves[0] == {"from": None, "to": "queued", "attempt": 0}
    for before, after in itertools.pairwise(moves):
        assert after["from"] == before["to"]
        assert after["to"] in TRANSITIONS[JobStatus(after["from"])]
        assert after["attempt"] >= before["attempt"]
    assert moves[-1]["to"] == job.status
    assert [attempt.number for attempt in attempts] == list(range(1, job.attempt + 1))
    live = [attempt.number for attempt in attempts if attempt.state in states.LIVE_ATTEMPT]
    assert live in ([], [job.attempt])
    if job.status in TERMINAL:
        assert events[-1].data.get("to") == job.status
        assert job.finished_at is not None
        assert live == []


@pytest.mark.parametrize(
    ("first", "second", "then"),
    [
        (StopReason.PREEMPTED, StopReason.TIME_LIMIT, JobStatus.QUEUED),
        (StopReason.TIME_LIMIT, StopReason.PREEMPTED, JobStatus.PAUSED),
    ],
)
def test_first_reason_to_stop_decides_what_becomes_of_the_job(
    database: Database, first: StopReason, second: StopReason, then: JobStatus
) -> None:
    job_id = make_job(database)
    assert start(database, job_id) == 1
    with database.write() as session:
        lifecycle.mark_running(session, job_id, 1)
        assert lifecycle.request_stop(session, job_id, 1, first, "First")
        assert not lifecycle.request_stop(session, job_id, 1, second, "Second")
        assert lifecycle.finish_attempt(session, job_id, 1, Ending("paused", None, Retry.LIMITED))
    job, events, attempts = read_history(database, job_id)
    check_history(job, events, attempts)
    assert (attempts[0].stop_reason, job.status) == (first, then)


def test_attempt_that_has_ended_is_not_asked_to_stop(database: Database) -> None:
    job_id = make_job(database)
    assert start(database, job_id) == 1
    with database.write() as session:
        lost = Ending("lost", None, Retry.INFRASTRUCTURE)
        assert lifecycle.finish_attempt(session, job_id, 1, lost) == JobStatus.RETRY_WAIT
        for reason in StopReason:
            assert not lifecycle.request_stop(session, job_id, 1, reason, "Too late")


class JobMachine(RuleBasedStateMachine):
    """Dispatcher, worker and user act on one job in any order, also late or for an old attempt."""

    database: Database

    def __init__(self) -> None:
        super().__init__()
        self.job_id = make_job(self.database)
        self.ended: str | None = None

    @rule()
    def start(self) -> None:
        start(self.database, self.job_id)

    @rule(back=st.integers(0, 1))
    def mark_submitted(self, back: int) -> None:
        with self.database.write() as session:
            runs.mark_submitted(session, self.job_id, self._attempt() - back)

    @rule(back=st.integers(0, 1))
    def mark_running(self, back: int) -> None:
        try:
            with self.database.write() as session:
                lifecycle.mark_running(session, self.job_id, self._attempt() - back)
        except StaleAttempt:
            assert back or self._status() not in ("starting", "running", "pausing", "cancelling")

    @rule(
        back=st.sampled_from([0, 0, 1]),
        outcome=st.sampled_from(["succeeded", "failed", "cancelled", "paused", "lost"]),
        retryable=st.booleans(),
    )
    def finish(self, back: int, outcome: states.AttemptOutcome, retryable: bool) -> None:
        error = {"type": "x", "message": "broke"} if outcome in ("failed", "lost") else None
        before, desired = self._status(), read_history(self.database, self.job_id)[0].desired
        with self.database.write() as session:
            ending = Ending(outcome, error, Retry.LIMITED if retryable else Retry.NEVER)
            status = lifecycle.finish_attempt(session, self.job_id, self._attempt() - back, ending)
        if before == "cancelling":
            assert status in (None, "cancelled")
        if desired == "pause":
            assert status not in ("retry_wait", "queued"), "a paused job must not be requeued"

    @rule()
    def requeue(self) -> None:
        with self.database.write() as session:
            lifecycle.requeue(session, self.job_id)

    @rule()
    def request_cancel(self) -> None:
        with self.database.write() as session:
            lifecycle.request_cancel(session, self.job_id)

    @rule()
    def request_pause(self) -> None:
        with self.database.write() as session:
            lifecycle.request_pause(session, self.job_id)

    @rule()
    def request_resume(self) -> None:
        before = self._status()
        with self.database.write() as session:
            status = lifecycle.request_resume(session, self.job_id)
        assert status == ("queued" if before == "paused" else None)

    @rule()
    def start_stopping(self) -> None:
        with self.database.write() as session:
            lifecycle.start_stopping(session, self.job_id)

    @rule(back=st.integers(0, 1), reason=st.sampled_from(StopReason))
    def request_stop(self, back: int, reason: StopReason) -> None:
        with self.database.write() as session:
            number = self._attempt() - back
            lifecycle.request_stop(session, self.job_id, number, reason)

    @rule()
    def append_event(self) -> None:
        with self.database.write() as session:
            seq = lifecycle.append_event(session, self.job_id, "note", "hello")
        assert (seq is None) == (self.ended is not None)

    @invariant()
    def history_is_consistent(self) -> None:
        job, events, attempts = read_history(self.database, self.job_id)
        check_history(job, events, attempts)
        if self.ended is not None:
            assert job.status == self.ended, "a terminal status was left"
        if job.status in TERMINAL:
            self.ended = job.status
        if job.status in ("paused", "pausing"):
            assert job.desired in ("pause", "cancel") or attempts[-1].stop_reason
        if job.status == "paused":
            assert not any(attempt.state in states.LIVE_ATTEMPT for attempt in attempts)

    def _attempt(self) -> int:
        return read_history(self.database, self.job_id)[0].attempt

    def _status(self) -> str:
        return read_history(self.database, self.job_id)[0].status


@pytest.mark.hypothesis
@pytest.mark.dialect(slow="postgresql")
def test_history_is_consistent_after_any_order_of_actions(database: Database) -> None:
    class DatabaseJobMachine(JobMachine):
        pass

    DatabaseJobMachine.database = database
    run_state_machine_as_test(
        DatabaseJobMachine,
        settings=settings(
            max_examples=25, stateful_step_count=12, suppress_health_check=list(HealthCheck)
        ),
    )


def in_parallel(work: Callable[[int], Any], times: int) -> list[Any]:
    with ThreadPoolExecutor(times) as pool:
        return list(pool.map(work, range(times)))


def test_start_attempt_succeeds_for_one_of_many_callers(database: Database) -> None:
    job_id = make_job(database)
    numbers = in_parallel(lambda _: start(database, job_id), 8)
    assert sorted(number or 0 for number in numbers) == [0] * 7 + [1]
    check_history(*read_history(database, job_id))


def test_append_event_numbers_concurrent_events_without_gaps(database: Database) -> None:
    job_id = make_job(database)

    def append(writer: int) -> list[int | None]:
        seqs = []
        for number in range(10):
            with database.write() as session:
                seqs.append(lifecycle.append_event(session, job_id, "note", f"{writer}.{number}"))
        return seqs

    seqs = [seq for seqs in in_parallel(append, 6) for seq in seqs]
    assert sorted(seq or 0 for seq in seqs) == list(range(2, 62))
    check_history(*read_history(database, job_id))


def test_cancel_racing_start_loses_to_the_first_commit(database: Database) -> None:
    def cancel(job_id: str) -> Any:
        with database.write() as session:
            return lifecycle.request_cancel(session, job_id)

    def race(job_id: str) -> None:
        in_parallel(lambda n: cancel(job_id) if n else start(database, job_id), 2)

    for _ in range(5):
        job_id = make_job(database)
        race(job_id)
        job, events, attempts = read_history(database, job_id)
        check_history(job, events, attempts)
        assert (job.status, len(attempts)) in (("cancelled", 0), ("starting", 1))
        assert job.desired == Desired.CANCEL


def test_rolled_back_transition_leaves_no_event(database: Database) -> None:
    job_id = make_job(database)

    def start_and_die() -> None:
        with database.write() as session:
            lifecycle.start_attempt(session, job_id, "hash")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start_and_die()
    job, events, attempts = read_history(database, job_id)
    assert (job.status, len(events), attempts) == ("queued", 1, [])


def test_retries_back_off_and_resume_from_newest_checkpoint(database: Database) -> None:
    job_id = make_job(database, max_restarts=2)
    error = {"type": "x", "message": "broke"}
    delays = []
    for number in (1, 2):
        assert start(database, job_id) == number
        with database.write() as session:
            lifecycle.mark_running(session, job_id, number)
            for step in (10 * number, 5 * number):
                session.add(
                    Checkpoint(
                        id=ids.new_id("ckpt"),
                        job_id=job_id,
                        attempt=number,
                        step=step,
                        epoch=1,
                        uri=f"file:///{number}/{step}",
                        files=[],
                        size=0,
                        metrics={},
                        state="registered",
                        final=False,
                        created_at=datetime.now(UTC),
                    )
                )
        with database.write() as session:
            status = lifecycle.finish_attempt(session, job_id, number, Ending("lost", error))
        assert status == "retry_wait"
        not_before = read_history(database, job_id)[0].not_before
        assert not_before is not None
        delays.append(not_before - datetime.now(UTC))
        with database.write() as session:
            assert lifecycle.requeue(session, job_id)
    assert timedelta(0) < delays[0] < delays[1]
    with database.write() as session:
        job = session.get_one(Job, job_id)
        job.progress = {"step": 23, "total_steps": 40, "epochs": 4, "eta_seconds": 3.0}
    assert start(database, job_id) == 3
    job, events, _ = read_history(database, job_id)
    assert job.progress == {"step": 20, "epoch": 1, "total_steps": 40, "epochs": 4}
    assert events[-1].message.startswith("Attempt 3 is starting from step 20 (checkpoint ckpt_")
    with database.write() as session:
        resume = session.get_one(Attempt, (job_id, 3)).resume_checkpoint_id
        assert session.get_one(Checkpoint, resume).step == 20
        status = lifecycle.finish_attempt(session, job_id, 3, Ending("failed", error))
    assert status == "failed"
    with database.write() as session:
        lifecycle.attach_log_tail(session, job_id, 3, ["last line"])
    job, events, attempts = read_history(database, job_id)
    assert job.error == {**error, "log_tail": ["last line"]} == attempts[-1].error
    assert job.restarts == 2
    check_history(job, events, attempts)


@pytest.mark.parametrize(
    ("second", "repeatable", "status"),
    [
        ({}, True, "failed"),
        ({}, False, "retry_wait"),  # an infrastructure error: disk or network may have recovered
        ({"type": "OtherError"}, True, "retry_wait"),
        ({"message": "at another place"}, True, "retry_wait"),
        ({"step": 40}, True, "failed"),  # restarted from an earlier checkpoint, no new step
        ({"step": 50}, True, "retry_wait"),
    ],
)
def test_repeated_error_without_progress_is_final(
    database: Database, second: dict[str, Any], repeatable: bool, status: str
) -> None:
    job_id = make_job(database, max_restarts=3)
    first: dict[str, Any] = {
        "type": "RuntimeError",
        "message": "overflow",
        "step": 40,
        "traceback": "1",
    }
    for number, failure in ((1, first), (2, first | {"step": 30, "traceback": "2"} | second)):
        start(database, job_id)
        error = {key: value for key, value in failure.items() if key != "step"}
        with database.write() as session:
            lifecycle.mark_running(session, job_id, number)
            for step in range(10, failure["step"] + 1, 10):
                session.add(
                    Metric(
                        job_id=job_id, name="loss", step=step, attempt=number, time=0.0, value=1.0
                    )
                )
        with database.write() as session:
            retry = Retry.UNLESS_REPEATED if repeatable else Retry.LIMITED
            ending = Ending("failed", error, retry)
            ended = lifecycle.finish_attempt(session, job_id, number, ending)
            if number == 1:
                assert ended == "retry_wait"
                assert lifecycle.requeue(session, job_id)
    assert ended == status
    if status == "failed":
        job, events, _ = read_history(database, job_id)
        assert job.restarts == 1
        assert events[-1].message == (
            "Job failed (same error twice in a row, without a step in between): overflow"
        )


def test_non_retryable_failure_is_final(database: Database) -> None:
    job_id = make_job(database, max_restarts=3)
    start(database, job_id)
    with database.write() as session:
        lifecycle.mark_running(session, job_id, 1)
        ending = Ending("failed", {"type": "x", "message": "no"}, Retry.NEVER)
        status = lifecycle.finish_attempt(session, job_id, 1, ending)
    assert status == "failed"
    with pytest.raises(StaleAttempt), database.write() as session:
        lifecycle.lock_live_attempt(session, job_id, 1)
