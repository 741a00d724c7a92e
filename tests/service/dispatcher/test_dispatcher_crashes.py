"""Death of a dispatcher at any moment: its successor loses nothing and submits nothing twice."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy.orm import Session

from service import lifecycle, states
from service.credentials import hash_token
from service.states import AttemptState, JobStatus
from service.worker_api.service import check_run_token
from tests.support.dispatcher_world import World

pytestmark = pytest.mark.dialect


class Crash(BaseException):
    """Death of the process; no code under test catches it."""


class Death:
    """Kill the dispatcher at the n-th of the moments that could matter.

    These are just before and just after each commit and each call to the executor.
    """

    def __init__(self, at: int) -> None:
        self.left = at

    def moment(self) -> None:
        if self.left == 0:
            self.left = -1
            raise Crash
        self.left -= 1

    def around_commits(self, write: Callable[[], Any]) -> Callable[[], Any]:
        @contextmanager
        def dying() -> Iterator[Session]:
            with write() as session:
                yield session
                self.moment()
            self.moment()

        return dying

    def around_calls(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def dying(*args: Any) -> Any:
            self.moment()
            answer = call(*args)
            self.moment()
            return answer

        return dying


def run_until_death(world: World, at: int) -> bool:
    """Run two rounds that start, retry and end a job; return whether the n-th moment was reached."""
    death = Death(at)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.database, "write", death.around_commits(world.database.write))
        for name in ("submit", "status", "stop", "logs", "cluster"):
            call = getattr(world.executor, name)
            patch.setattr(world.executor, name, death.around_calls(call))
        try:
            world.tick()
            world.tick(10)
        except Crash:
            return True
    return False


# A round with a job to start, a killed one, one to cancel, one to retry, and a dataset has about 50
# moments, of which `make test` tries some.
@pytest.mark.dialect(slow="postgresql")
@pytest.mark.parametrize(
    "moments",
    [
        pytest.param(range(0, 60, 6), id="some"),
        *(
            pytest.param(range(first, first + 10), id=f"from {first}", marks=pytest.mark.slow)
            for first in range(0, 60, 10)
        ),
    ],
)
def test_dispatcher_recovers_from_crash_at_every_point(world: World, moments: range) -> None:
    if world.database.engine.dialect.name == "postgresql":
        moments = moments[::4]  # it takes twice as long, and the moments are those of the same code
    # The drivers of this test send no heartbeats, so only this limit ends those that are cancelled.
    world.settings.cancel_max_seconds = 30
    for at in moments:
        world.executor.nodes[0] = type(world.executor.nodes[0])("n", "127.0.0.1", 8, 0, 0, 0)
        killed, cancelled, finished = (world.add_job(max_restarts=1) for _ in range(3))
        dataset = world.add_dataset()
        world.restart()
        world.tick()
        for job in (killed, cancelled, finished):
            world.worker_starts(job)
        world.executor.kill(world.run_id(killed))
        world.cancel(cancelled)
        world.ahead += world.ahead.resolution
        fresh = world.add_job()
        fresh_dataset = world.add_dataset()

        died = run_until_death(world, at)
        world.restart()
        world.tick(20, times=4)

        submitted = world.executor.submitted
        assert len(submitted) == len(set(submitted))
        assert world.status(fresh) == JobStatus.STARTING
        number = world.job(fresh).attempt
        attempt = world.attempt(fresh, number)
        assert attempt.state == AttemptState.SUBMITTED
        token = world.executor.envs[world.run_id(fresh, number)]["DASL_WORKER_TOKEN"]
        assert hash_token(token) == attempt.token_hash, "the driver has the token that counts"
        assert number == 1 or world.attempt(fresh, 1).state == AttemptState.LOST
        assert number <= 2, "one death costs no more than one attempt"
        assert world.job(fresh).restarts == 0, "it is not the job's fault"
        later = tuple(f"{killed}-{number}-" for number in (2, 3))
        again = [name for name in submitted if name.startswith(later)]
        assert len(again) == 1, "handed in again, once"
        assert (world.job(killed).restarts, world.job(killed).infrastructure_failures) == (0, 1)
        assert world.status(cancelled) == JobStatus.CANCELLED
        assert not world.executor.is_running(world.run_id(cancelled))
        assert world.status(finished) == JobStatus.RUNNING
        ingests = [name for name in submitted if name.startswith(fresh_dataset)]
        assert ingests == [world.run_id(fresh_dataset)]
        token = world.executor.envs[world.run_id(fresh_dataset)]["DASL_WORKER_TOKEN"]
        assert hash_token(token) == world.ingest_run(fresh_dataset).token_hash

        for job in (killed, finished, fresh):
            world.cancel(job)
        world.tick(40)
        world.tick()
        for name in (world.run_id(dataset), world.run_id(fresh_dataset)):
            world.executor.kill(name)
        world.tick()
        for name in (world.run_id(dataset, 2), world.run_id(fresh_dataset, 2)):
            world.executor.kill(name)
        world.tick()
        if not died:
            assert at > 45, "the moments were fewer than expected"
            return


def test_late_submission_is_not_the_current_attempt(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dispatcher is suspended between its commit and its call, and another one takes over."""
    job = world.add_job()
    stalled: list[tuple[Any, ...]] = []

    def stall(*call: Any) -> None:
        stalled.append(call)
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(world.executor, "submit", stall)
        with pytest.raises(Crash):
            world.tick()
    world.restart("second")
    world.tick(60)
    world.tick()
    world.executor.submit(*stalled[0])
    with world.database.read() as session:
        for run_id in (world.run_id(job, number) for number in (1, 2)):
            token = world.executor.envs[run_id]["DASL_WORKER_TOKEN"]
            check_run_token(session, token, run_id)
    with world.database.write() as session, pytest.raises(states.StaleAttempt):
        lifecycle.lock_live_attempt(session, job, 1)
    world.worker_starts(job, 2)
    world.tick()
    assert world.status(job) == JobStatus.RUNNING
    assert world.job(job).restarts == 0
