"""Jobs whose stored spec cannot be read: what the API answers for them and for the jobs beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dasl_core.spec import versions
from service.db.models import Job
from service.scheduling import repository as scheduling
from tests.support.api_under_test import Api, snapshot
from tests.support.unreadable_specs import UNREADABLE, fail_on_unexpected


@pytest.fixture(params=list(UNREADABLE.values()), ids=list(UNREADABLE))
def spoil(
    request: pytest.FixtureRequest, api: Api, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], None]:
    """Make the spec of a job unreadable."""
    monkeypatch.setattr(versions, "UPGRADERS", [fail_on_unexpected])
    monkeypatch.setattr(scheduling, "_resources_by_job", {})

    def spoil_job(job_id: str) -> None:
        with api.database.write() as session:
            request.param(session.get_one(Job, job_id))
        monkeypatch.setattr(scheduling, "_resources_by_job", {})

    return spoil_job


def check_views(api: Api, bad: str, good: str) -> dict[str, str]:
    """Check that all views with the job answer; return the reasons of the queue."""
    listed = api.client.get("/v1/jobs")
    assert listed.status_code == 200, listed.text
    assert {job["id"] for job in listed.json()["data"]} == {bad, good}
    metrics = api.client.get("/metrics", headers={"Authorization": ""})
    assert metrics.status_code == 200, metrics.text
    shown = api.client.get(f"/v1/jobs/{bad}")
    assert shown.status_code == 200, shown.text
    cluster = api.client.get("/v1/cluster")
    assert cluster.status_code == 200, cluster.text
    return {job["id"]: job["reason"] for job in cluster.json()["queue"]}


def test_queued_job_is_shown_with_the_reason(api: Api, spoil: Callable[[str], None]) -> None:
    api.dataset()
    bad, good = api.submit()["id"], api.submit()["id"]
    snapshot(api, cpus=4)
    spoil(bad)
    reasons = check_views(api, bad, good)
    assert reasons[bad].startswith("It cannot start: ")
    assert reasons[good] == ""
    with api.database.read() as session:
        assert [job.job_id for job in scheduling.queued(session)] == [good]


def test_running_job_can_report_and_finish(api: Api, spoil: Callable[[str], None]) -> None:
    api.dataset()
    bad, good = api.submit()["id"], api.submit()["id"]
    snapshot(api, cpus=4)
    worker = api.start(bad)
    worker.post("start")
    spoil(bad)
    assert check_views(api, bad, good) == {good: ""}
    assert worker.post("heartbeat").status_code == 200
    error: dict[str, Any] = {"type": "x", "message": "y"}
    answer = worker.post("finish", outcome="failed", error=error)
    assert answer.status_code == 204, answer.text
    assert api.client.get(f"/v1/jobs/{bad}").json()["status"] == "retry_wait"
