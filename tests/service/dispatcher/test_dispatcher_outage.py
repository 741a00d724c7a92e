"""Database outages: the dispatcher waits for the database and keeps its identity."""

from contextlib import ExitStack
from datetime import timedelta

import pytest
from sqlalchemy.exc import OperationalError

from service.credentials import hash_token
from service.datasets.ingests import repository as ingests
from service.dispatcher.executor import ExecutorUnavailable, Submission
from service.scheduling.nodes import Cluster
from service.states import DatasetState, JobStatus
from tests.support.database_outage import database_outage
from tests.support.dispatcher_world import World, running
from tests.support.polling import wait_for

pytestmark = pytest.mark.dialect


def test_dispatcher_continues_after_database_outage(
    world: World, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    job = world.add_job()
    with ExitStack() as dispatcher:
        with database_outage(world.database, database_url):
            dispatcher.enter_context(running(world))
            wait_for(lambda: "The database does not answer" in caplog.text)
        wait_for(lambda: "The database answers" in caplog.text)
        wait_for(lambda: world.status(job) == JobStatus.STARTING)
        assert caplog.text.count("The database does not answer") == 1
    # The lease was released, so the next dispatcher need not wait.
    world.restart("second")
    world.tick(0)
    assert world.dispatcher.sees_nodes


def test_dispatcher_continues_after_unexpected_error(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job = world.add_job()
    cluster, failures = world.executor.cluster, [KeyError("resources_total")] * 2

    def fails_twice() -> Cluster:
        if failures:
            raise failures.pop()
        return cluster()

    monkeypatch.setattr(world.executor, "cluster", fails_twice)

    def started() -> bool:
        world.ahead += timedelta(seconds=2)
        return world.status(job) == JobStatus.STARTING

    with running(world):
        wait_for(started)
    assert caplog.text.count("A round of the dispatcher failed") == 2
    assert "the next is in 0.0 s" in caplog.text  # 0.02, 0.04, ... up to a minute


def test_dispatcher_stops_during_database_outage(
    world: World, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with database_outage(world.database, database_url), running(world):
        wait_for(lambda: "The database does not answer" in caplog.text)


def test_outage_within_round_loses_nothing(
    world: World,
    database_url: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = world.start_job()
    world.executor.kill(world.run_id(job))
    outage, known = ExitStack(), world.executor.status

    def status(submission_id: str) -> Submission | None:
        # The outage starts during a call to Ray, where a round spends most of its time.
        monkeypatch.setattr(world.executor, "status", known)
        outage.enter_context(database_outage(world.database, database_url))
        return known(submission_id)

    monkeypatch.setattr(world.executor, "status", status)
    world.ahead += timedelta(seconds=2)
    with running(world):
        wait_for(lambda: "The database does not answer" in caplog.text)
        assert "Traceback" not in caplog.text
        outage.close()
        world.ahead += timedelta(seconds=1)
        wait_for(lambda: world.status(job) == JobStatus.RETRY_WAIT)


def test_failed_token_replacement_is_repeated(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token whose hash was not stored would be refused by the API."""
    dataset = world.add_dataset()

    def refuse(*_: object) -> None:
        raise ExecutorUnavailable("not now")

    with monkeypatch.context() as patch:
        patch.setattr(world.executor, "submit", refuse)
        world.tick()
    world.restart()

    def away(*_: object) -> bool:
        raise OperationalError("UPDATE runs", {}, Exception("gone"))

    with monkeypatch.context() as patch:
        patch.setattr("service.runs.repository.replace_token", away)
        with pytest.raises(OperationalError):
            world.tick()
    world.tick()
    token = world.executor.envs[world.run_id(dataset)]["DASL_WORKER_TOKEN"]
    assert hash_token(token) == world.ingest_run(dataset).token_hash


def test_run_that_ended_since_it_was_read_is_not_submitted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = world.add_dataset()

    def refuse(*_: object) -> None:
        raise ExecutorUnavailable("not now")

    with monkeypatch.context() as patch:
        patch.setattr(world.executor, "submit", refuse)
        world.tick()
    _, watcher = world.restart()._reruns[0]
    with world.database.write() as session:
        (run,) = ingests.ingesting(session)
        assert ingests.end_ingest(session, dataset, 1, DatasetState.FAILED)
    watcher.watch(run)
    assert not world.executor.submitted
