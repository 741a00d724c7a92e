"""`GET /v1/cluster`: the order of the queue and the reason that each job waits."""

from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import select

from service.cluster import queue as queue_view
from service.db import leases
from service.db.models import ClusterSnapshot
from service.scheduling import window
from service.scheduling.dispatcher_report import DispatcherReport, StoreReport
from tests.support.api_under_test import Api, decide, snapshot


def queue_of(api: Api) -> list[dict[str, Any]]:
    queue: list[dict[str, Any]] = api.client.get("/v1/cluster").json()["queue"]
    return queue


def test_job_behind_the_first_ones_says_so(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (window, queue_view):
        monkeypatch.setattr(module, "ALWAYS", 1)
    api.dataset()
    snapshot(api, cpus=1)
    for _ in range(2):
        api.submit()
    decide(api)
    _, second = queue_of(api)
    assert (second["waits_for"], second["reason"][:6]) == (None, "Behind")


def test_queue_says_what_each_job_waits_for(api: Api) -> None:
    api.dataset()
    limited = api.token("submit", max_running_jobs=0)
    spec = {"dataset": "emoji", "resources": {"cpus_per_worker": 1}, "priority": 9}
    kept = api.client.post("/v1/jobs", json=spec, headers=limited).json()["id"]
    running = api.submit(resources={"cpus_per_worker": 3})["id"]
    api.start(running)
    large = api.submit(resources={"cpus_per_worker": 4})["id"]
    small = api.submit(resources={"cpus_per_worker": 1})["id"]
    short = api.submit(resources={"cpus_per_worker": 1, "max_hours": 1})["id"]
    assert [job["reason"] for job in queue_of(api)] == [""] * 4  # There is no snapshot yet.
    snapshot(api, cpus=4)
    decide(api)
    queue = {job["id"]: job for job in queue_of(api)}
    assert list(queue) == [kept, large, small, short]
    expected = ["quota", "room", "reserved-room", None]
    assert [job["waits_for"] for job in queue.values()] == expected
    assert "max_running_jobs is 0" in queue[kept]["reason"]
    assert queue[large]["reason"].startswith("Waiting for 4 CPUs: 3 of 4 CPUs are in use")
    # By the minute: a time that moves on each second is not written each second.
    assert datetime.fromisoformat(queue[large]["starts_by"]).second == 0
    assert (queue[short]["reason"], queue[short]["starts_by"]) == ("", None)


NOW = datetime(2026, 1, 1, tzinfo=UTC)
NO_STORE = StoreReport(checked_at=NOW, problem="away")


@pytest.mark.parametrize(
    ("changes", "waits_for", "reason"),
    [
        ({"store": NO_STORE}, "store", "Waiting for the artifact store, which cannot be written"),
        # As where only the address of the workers is down.
        ({"api_answers": False}, "api", "Waiting for the API, which does not answer"),
        (None, None, "Waiting for Ray, which does not answer"),
    ],
)
def test_queue_says_what_is_away(
    api: Api, changes: dict[str, Any] | None, waits_for: str | None, reason: str
) -> None:
    api.dataset()
    api.submit()
    snapshot(api, cpus=4)
    assert [(job["waits_for"], job["reason"]) for job in queue_of(api)] == [(None, "")]
    with api.database.write() as session:
        stored = session.scalars(select(ClusterSnapshot)).one()
        stored.alive = changes is not None
        report = DispatcherReport(started_at=NOW, **changes or {})
        stored.dispatcher = report.model_dump(mode="json")
    decide(api)
    [job] = queue_of(api)
    assert job["waits_for"] == waits_for
    assert job["reason"].startswith(reason)


def test_only_admins_see_ids_and_addresses_of_nodes(api: Api) -> None:
    snapshot(api, 4, others=[(8, 1)])
    for scope in ("read", "submit"):
        nodes = api.client.get("/v1/cluster", headers=api.token(scope)).json()["nodes"]
        named = [(node["id"], node["address"], node["total_cpus"]) for node in nodes]
        assert named == [("node-1", "", 4), ("node-2", "", 8)]
    nodes = api.client.get("/v1/cluster", headers=api.token("admin")).json()["nodes"]
    assert [(node["id"], node["address"]) for node in nodes] == [
        ("n1", "127.0.0.1"),
        ("n2", "127.0.0.1"),
    ]


def test_queue_order_follows_changed_priority(api: Api) -> None:
    api.dataset()
    first, second = api.submit()["id"], api.submit()["id"]
    assert [job["id"] for job in queue_of(api)] == [first, second]
    assert api.client.patch(f"/v1/jobs/{second}", json={"priority": 1}).status_code == 200
    assert [(job["id"], job["priority"]) for job in queue_of(api)] == [(second, 1), (first, 0)]


def test_queue_counts_but_hides_other_tenants(api: Api) -> None:
    for tenant in ("default", "other"):
        api.dataset(tenant=tenant)
    theirs = api.token("submit", tenant="other")
    spec = {"dataset": "emoji", "resources": {"cpus_per_worker": 4}}
    job = api.client.post("/v1/jobs", json=spec, headers=theirs).json()["id"]
    api.start(job)
    mine = api.submit(resources={"cpus_per_worker": 1})["id"]
    snapshot(api, cpus=4)
    decide(api)
    cluster = api.client.get("/v1/cluster").json()
    assert (cluster["queued"], [job["id"] for job in cluster["queue"]]) == (1, [mine])
    assert cluster["queue"][0]["reason"].startswith("Waiting for 1 CPU: 4 of 4 CPUs are in use")
    assert job not in api.client.get("/v1/cluster").text


def test_decisions_of_a_dispatcher_that_ended_are_not_shown(api: Api) -> None:
    """The queue went on to promise a start by a time that had passed."""
    api.dataset()
    snapshot(api, cpus=4)
    api.submit(resources={"cpus_per_worker": 64})
    decide(api)
    [decided] = queue_of(api)
    assert decided["waits_for"] == "machines"
    with api.database.write() as session:
        leases.release_lease(session, leases.DISPATCHER_LEASE, "decides")
    [waiting] = queue_of(api)
    assert waiting["waits_for"] is None
    assert waiting["reason"].startswith("No dispatcher runs at the moment")
