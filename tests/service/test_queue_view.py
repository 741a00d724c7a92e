"""`GET /v1/cluster`: the order of the queue and the reason that each job waits."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select

from service.db.models import ClusterSnapshot
from tests.support.api_under_test import Api, snapshot


def queue_of(api: Api) -> list[dict[str, Any]]:
    queue: list[dict[str, Any]] = api.client.get("/v1/cluster").json()["queue"]
    return queue


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
    queue = {job["id"]: job for job in queue_of(api)}
    assert list(queue) == [kept, large, small, short]
    expected = ["quota", "room", "reserved-room", None]
    assert [job["waits_for"] for job in queue.values()] == expected
    assert "max_running_jobs is 0" in queue[kept]["reason"]
    assert queue[large]["reason"].startswith("Waiting for 4 CPUs: 3 of 4 CPUs are in use")
    assert queue[large]["starts_by"] is not None
    assert (queue[short]["reason"], queue[short]["starts_by"]) == ("", None)


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


def test_queue_names_unavailable_ray_as_reason(api: Api) -> None:
    api.dataset()
    api.submit()
    snapshot(api, cpus=4)
    with api.database.write() as session:
        session.scalars(select(ClusterSnapshot)).one().alive = False
    (job,) = queue_of(api)
    assert job["reason"].startswith("Waiting for Ray, which does not answer")


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
    mine = api.submit()["id"]
    snapshot(api, cpus=4)
    cluster = api.client.get("/v1/cluster").json()
    assert (cluster["queued"], [job["id"] for job in cluster["queue"]]) == (1, [mine])
    assert cluster["queue"][0]["reason"].startswith("Waiting for 1 CPU: 4 of 4 CPUs are in use")
    assert job not in api.client.get("/v1/cluster").text
