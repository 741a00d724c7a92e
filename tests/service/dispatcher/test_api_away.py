"""Outages of the API alone: no job fails by one, and nothing starts in it."""

from collections.abc import Iterator

import pytest

from service.runs.endings import MAX_INFRASTRUCTURE_FAILURES
from service.states import JobStatus
from tests.support.dispatcher_world import World
from tests.support.scripted_server import Answer, Request, ScriptedServer, answer_json


class Api:
    """An API whose process a test can end, or put a proxy before that answers for it."""

    def __init__(self) -> None:
        self.status = 200
        self.up()

    def up(self, port: int = 0) -> None:
        self.server = ScriptedServer(self._answer, port)

    def down(self) -> None:
        self.server.close()

    def _answer(self, request: Request) -> Answer:
        assert request.path == "/livez"
        return answer_json({"status": "ok"}, self.status)


@pytest.fixture
def api(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    api = Api()
    monkeypatch.setattr(world.settings, "api_url", api.server.url)
    world.restart()
    yield api
    api.down()


def test_start_of_an_attempt_in_an_outage_is_not_charged(world: World, api: Api) -> None:
    job = world.add_job()
    world.tick(times=2)
    api.status = 503
    world.tick(890)
    world.tick(5)
    world.tick(10)
    assert (world.attempt(job).error or {})["type"] == "start-timeout"
    queued, dataset = world.add_job(), world.add_dataset()
    world.tick(1200, times=3)
    for each in (job, queued):
        assert world.status(each) == JobStatus.QUEUED
        [reason] = world.events(each, "waiting")
        assert "the API" in reason
    assert world.dataset(dataset).state == "pending"
    assert world.job(job).infrastructure_failures == 0
    api.status = 200
    world.tick(times=2)
    assert world.executor.is_running(world.run_id(job, 2))
    assert world.dataset(dataset).state == "ingesting"


def test_api_that_refuses_connections_is_away_after_two_checks(world: World, api: Api) -> None:
    world.tick()
    port = int(api.server.url.rpartition(":")[2])
    api.down()
    check = world.dispatcher._api
    for answers in (True, False, False):
        check.round()
        assert check.answers is answers
    api.up(port)
    check.round()
    assert check.answers


@pytest.mark.slow
def test_address_that_never_answered_does_not_stop_the_queue(world: World, api: Api) -> None:
    """Perhaps only the workers reach it. Their attempts are charged, so that a wrong address ends its jobs."""
    api.status = 503
    job = world.add_job()
    for number in range(1, MAX_INFRASTRUCTURE_FAILURES + 2):
        for seconds in (125, 2, 890, 15):
            world.tick(seconds)
        assert (world.attempt(job, number).error or {})["type"] == "start-timeout"
    assert world.status(job) == JobStatus.FAILED
