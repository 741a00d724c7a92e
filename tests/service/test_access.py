"""Tokens and scopes, the cluster endpoint, the catalog and the OpenAPI document."""

import pytest
from sqlalchemy import select

from service.db.models import Token
from tests.support.api_under_test import Api, decide, refused, snapshot


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Bearer dasl_wrong", "Basic abc", "Bearer \xff"]
)
def test_bad_token_is_unauthenticated_everywhere(api: Api, header: str | None) -> None:
    del api.client.headers["authorization"]
    headers = {} if header is None else {b"Authorization": header.encode("latin-1")}
    for path in ("/v1/jobs", "/v1/tokens", "/v1/cluster", "/v1/catalog/methods"):
        answer = api.client.get(path, headers=headers)
        refused(answer, 401, None, "unauthenticated")
        assert answer.headers["www-authenticate"] == "Bearer"
    answer = api.client.post("/worker/v1/runs/job_x-1/heartbeat", json={}, headers=headers)
    refused(answer, 401)


def test_token_is_shown_once_stored_as_hash_and_revoked_immediately(api: Api) -> None:
    admin = api.token("admin")
    body = {"name": "laptop", "scopes": ["read"]}
    created = api.client.post("/v1/tokens", json=body, headers=admin).json()
    assert created["token"].startswith("dasl_")
    headers = {"Authorization": f"Bearer {created['token']}"}
    assert api.client.get("/v1/jobs", headers=headers).status_code == 200
    listed = api.client.get("/v1/tokens", headers=admin)
    assert created["id"] in [token["id"] for token in listed.json()["data"]]
    assert created["token"] not in listed.text
    with api.database.read() as session:
        row = session.scalars(select(Token).where(Token.id == created["id"])).one()
        assert created["token"] not in str(vars(row))
    theirs = api.token("admin", tenant="other")
    refused(api.client.delete(f"/v1/tokens/{created['id']}", headers=theirs), 404)
    for _ in range(2):
        answer = api.client.delete(f"/v1/tokens/{created['id']}", headers=admin)
        assert answer.status_code == 204
    refused(api.client.get("/v1/jobs", headers=headers), 401)
    for bad in ({"name": "x", "scopes": ["root"]}, {"name": "x", "scopes": []}, {"name": ""}):
        refused(api.client.post("/v1/tokens", json=bad, headers=admin), 422)


def test_current_token_endpoint_returns_callers_token(api: Api) -> None:
    reader = api.token("read")
    current = api.client.get("/v1/tokens/current", headers=reader).json()
    assert (current["name"], current["scopes"]) == ("test", ["read"])
    assert "token" not in current
    theirs = api.client.get("/v1/tokens/current", headers=api.token("read", tenant="other"))
    assert theirs.json()["id"] != current["id"]
    refused(api.client.get("/v1/tokens/current", headers={"Authorization": "Bearer x"}), 401)


def test_cluster_endpoint_lists_own_queue_by_priority(api: Api) -> None:
    empty = api.client.get("/v1/cluster").json()
    assert (empty["at"], empty["alive"], empty["queue"]) == (None, False, [])
    api.dataset()
    low, high = api.submit()["id"], api.submit(priority=5)["id"]
    snapshot(api, cpus=4)
    cluster = api.client.get("/v1/cluster").json()
    assert (cluster["total_cpus"], cluster["used_cpus"], cluster["free_cpus"]) == (4, 1, 3)
    assert [job["id"] for job in cluster["queue"]] == [high, low]
    assert cluster["allocated_cpus"] == 0
    theirs = api.client.get("/v1/cluster", headers=api.token("read", tenant="other")).json()
    assert theirs["queue"] == []


def test_cluster_endpoint_distinguishes_allocated_from_used_cpus(api: Api) -> None:
    api.dataset()
    snapshot(api, cpus=4)
    running = api.submit(resources={"workers": 1, "cpus_per_worker": 3})["id"]
    api.submit(resources={"workers": 1, "cpus_per_worker": 2})
    assert api.client.get("/v1/cluster").json()["allocated_cpus"] == 0
    api.start(running)
    decide(api)
    cluster = api.client.get("/v1/cluster").json()
    # CPUs are allocated immediately; Ray's workers use them seconds later.
    assert (cluster["allocated_cpus"], cluster["used_cpus"], cluster["free_cpus"]) == (3, 1, 1)
    assert cluster["queue"][0]["reason"].startswith("Waiting for 2 CPUs: 3 of 4 CPUs are in use")


def test_catalog_and_openapi_describe_methods_and_job_spec(api: Api) -> None:
    methods = api.client.get("/v1/catalog/methods").json()
    simclr = next(entry for entry in methods["data"] if entry["name"] == "simclr")
    assert "temperature" in simclr["schema"]["properties"]
    assert "dataset" in methods["job_schema"]["properties"]
    backbones = api.client.get("/v1/catalog/backbones").json()["data"]
    assert "resnet18" in [entry["name"] for entry in backbones]
    description = api.client.get("/openapi.json").json()
    submit = description["paths"]["/v1/jobs"]["post"]
    assert submit["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith(
        "/JobSpec"
    )
    assert "application/problem+json" in submit["responses"]["4XX"]["content"]
    assert "ProblemDocument" in description["components"]["schemas"]
