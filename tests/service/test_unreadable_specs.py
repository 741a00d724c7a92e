"""Jobs whose stored spec cannot be read: what the API answers for them and for the jobs beside them."""

from collections.abc import Callable
from typing import Any

import pytest

from dasl_core.spec import versions
from service import lifecycle
from service.cluster import queue as queue_view
from service.db.models import Job
from service.scheduling import repository as scheduling
from service.scheduling import window
from tests.support.api_under_test import Api, decide, refused, snapshot
from tests.support.unreadable_specs import UNREADABLE, fail_on_unexpected


@pytest.fixture(params=list(UNREADABLE.values()), ids=list(UNREADABLE))
def spoil(
    request: pytest.FixtureRequest, api: Api, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], None]:
    """Make the spec of a job unreadable."""
    monkeypatch.setattr(versions, "UPGRADERS", [fail_on_unexpected])
    monkeypatch.setattr(scheduling.resources, "_resources_by_job", {})

    def spoil_job(job_id: str) -> None:
        with api.database.write() as session:
            request.param(session.get_one(Job, job_id))
        monkeypatch.setattr(scheduling.resources, "_resources_by_job", {})

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


def test_queued_job_is_shown_with_the_reason(
    api: Api, spoil: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    api.dataset()
    bad, good = api.submit()["id"], api.submit()["id"]
    snapshot(api, cpus=4)
    spoil(bad)
    reasons = check_views(api, bad, good)
    assert reasons[bad].startswith("It cannot start: ")
    assert reasons[good] == ""
    with api.database.read() as session:
        for _ in range(2):
            assert [job.job_id for job in scheduling.queued(session, 10)[0]] == [good]
    said = [record for record in caplog.records if record.name.startswith("service")]
    assert sum(bad in record.getMessage() for record in said) == 1  # not in each round


def test_running_job_can_report_and_finish(api: Api, spoil: Callable[[str], None]) -> None:
    api.dataset()
    bad, good = api.submit()["id"], api.submit()["id"]
    snapshot(api, cpus=4)
    worker = api.run(bad)
    spoil(bad)
    assert check_views(api, bad, good) == {good: ""}
    assert worker.post("heartbeat").status_code == 200
    refused(worker.post("start"), 409, type="spec-unreadable")
    error: dict[str, Any] = {"type": "x", "message": "y"}
    answer = worker.post("finish", outcome="failed", error=error)
    assert answer.status_code == 204, answer.text
    assert api.client.get(f"/v1/jobs/{bad}").json()["status"] == "retry_wait"
    newest = api.client.get(f"/v1/jobs/{bad}/events").json()["data"][-1]["message"]
    assert newest == "Attempt 1 failed: y. Restart 1 when a server can read the job's spec"


def test_spec_with_an_unknown_setting_is_not_sent_to_the_driver(api: Api) -> None:
    """The dispatcher reads only `resources`, so it starts such a job."""
    api.dataset()
    job_id = api.submit()["id"]
    with api.database.write() as session:
        job = session.get_one(Job, job_id)
        job.resolved = {**job.resolved, "momentum": 1}
    for attempt in (1, 2):
        worker = api.start(job_id)
        reason = refused(worker.post("start"), 409, type="spec-unreadable")["detail"]
        assert "spec.momentum" in reason
        assert api.client.get(f"/v1/jobs/{job_id}").json()["status"] == "starting"
        # As `workers.driver` reports the refusal.
        error = {"type": "ApiError", "message": reason}
        answer = worker.post("finish", outcome="failed", error=error, repeatable=True)
        assert answer.status_code == 204, answer.text
        if attempt == 1:
            with api.database.write() as session:
                assert lifecycle.requeue(session, job_id)
    shown = api.client.get(f"/v1/jobs/{job_id}").json()
    assert (shown["status"], shown["error"]["message"]) == ("failed", reason)


def test_jobs_behind_the_first_ones_have_a_reason_beside_unreadable_ones(
    api: Api, spoil: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (window, queue_view):
        monkeypatch.setattr(module, "ALWAYS", 2)
    api.dataset()
    snapshot(api, cpus=1)
    bad, _, _, behind = [api.submit()["id"] for _ in range(4)]
    spoil(bad)
    decide(api)
    reasons = {job["id"]: job["reason"] for job in api.client.get("/v1/cluster").json()["queue"]}
    assert reasons[bad].startswith("It cannot start")
    assert reasons[behind].startswith("Behind 500 other jobs")
