"""Tenants by API: create, change, disable and delete; an operator acts for all of them."""

from typing import Any

import pytest

from service.db.models import IdempotencyKey, Job, Tenant
from tests.support.api_under_test import Api, refused

pytestmark = pytest.mark.dialect

LIMITS = {
    "weight": 2.5,
    "max_queued_jobs": 100,
    "max_running_jobs": 4,
    "max_gpus": 8,
    "max_priority": 10,
    "max_hours": 48.0,
}


@pytest.fixture
def operator(api: Api) -> dict[str, str]:
    return api.token("operator", tenant="operations")


def acting(operator: dict[str, str], tenant: str) -> dict[str, str]:
    return operator | {"DASL-Tenant": tenant}


def test_tenant_can_be_created_shown_changed_and_deleted(
    api: Api, operator: dict[str, str]
) -> None:
    answer = api.client.post("/v1/tenants", json={"name": "lab", **LIMITS}, headers=operator)
    assert answer.status_code == 201
    lab = answer.json()
    assert answer.headers["location"] == "/v1/tenants/lab"
    assert {name: lab[name] for name in LIMITS} == LIMITS
    assert api.client.get("/v1/tenants/lab", headers=operator).json() == lab
    again = api.client.post("/v1/tenants", json={"name": "lab"}, headers=operator)
    refused(again, 409, None, "name-taken")
    changes = {"weight": 0.5, "max_gpus": None}
    changed = api.client.patch("/v1/tenants/lab", json=changes, headers=operator).json()
    assert changed == {**lab, **changes}
    assert api.client.patch("/v1/tenants/lab", json={}, headers=operator).json() == changed
    assert api.client.delete("/v1/tenants/lab", headers=operator).status_code == 204
    refused(api.client.get("/v1/tenants/lab", headers=operator), 404)
    refused(api.client.delete("/v1/tenants/lab", headers=operator), 404)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", "a/b"),
        ("name", ".."),
        ("name", "a;b=c"),
        ("name", "x" * 101),
        ("weight", 0),
        ("weight", None),
        ("weight", 1e9),
        ("max_gpus", -1),
        ("max_priority", 5000),
        ("max_hours", 0),
        ("quota", 1),
    ],
)
def test_invalid_tenants_are_refused(
    api: Api, operator: dict[str, str], field: str, value: Any
) -> None:
    body = {"name": "lab", field: value}
    refused(api.client.post("/v1/tenants", json=body, headers=operator), 422, field)
    if field != "name":
        change = api.client.patch("/v1/tenants/default", json={field: value}, headers=operator)
        refused(change, 422, field)


def test_operators_list_all_tenants_and_others_only_their_own(
    api: Api, operator: dict[str, str]
) -> None:
    for name in ("b", "a", "c"):
        api.client.post("/v1/tenants", json={"name": name}, headers=operator)
    listed: list[str] = []
    params: dict[str, Any] = {"limit": 2}
    more = True
    while more:
        page = api.client.get("/v1/tenants", params=params, headers=operator).json()
        listed += [tenant["name"] for tenant in page["data"]]
        more, params["after"] = page["has_more"], page["next"]
    assert listed == ["a", "b", "c", "default", "operations"]
    own = api.client.get("/v1/tenants").json()["data"]
    assert [tenant["name"] for tenant in own] == ["default"]
    assert api.client.get("/v1/tenants/default").status_code == 200
    for other in ("a", "nonexistent", "%00"):
        refused(api.client.get(f"/v1/tenants/{other}"), 404, None, "not-found")
    refused(api.client.get("/v1/tenants", params={"after": "\0"}), 422)


def test_first_token_of_a_tenant_creates_its_row(api: Api) -> None:
    api.token("read", tenant="old name / with a slash")
    with api.database.read() as session:
        assert session.get_one(Tenant, "old name / with a slash").weight == 1
    path = "/v1/tenants/old%20name%20/%20with%20a%20slash"
    headers = api.token("read", tenant="old name / with a slash")
    assert api.client.get(path, headers=headers).status_code == 200


def test_operator_acts_as_administrator_of_the_named_tenant(
    api: Api, operator: dict[str, str]
) -> None:
    api.client.post("/v1/tenants", json={"name": "lab"}, headers=operator)
    in_lab = acting(operator, "lab")
    api.dataset(tenant="lab")
    job = api.client.post("/v1/jobs", json={"dataset": "emoji"}, headers=in_lab).json()["id"]
    with api.database.read() as session:
        assert session.get_one(Job, job).tenant == "lab"
    refused(api.client.get(f"/v1/jobs/{job}", headers=operator), 404)
    refused(api.client.get(f"/v1/jobs/{job}"), 404)
    body = {"name": "of the lab", "scopes": ["admin"]}
    token = api.client.post("/v1/tokens", json=body, headers=in_lab).json()
    assert token["tenant"] == "lab"
    lab = {"Authorization": f"Bearer {token['token']}"}
    assert api.client.post(f"/v1/jobs/{job}/cancel", headers=in_lab).status_code == 202
    assert api.client.get(f"/v1/jobs/{job}", headers=lab).json()["status"] == "cancelled"
    # Naming the own tenant is always allowed.
    assert api.client.get(f"/v1/jobs/{job}", headers=acting(lab, "lab")).status_code == 200
    current = api.client.get("/v1/tokens/current", headers=in_lab).json()
    assert (current["tenant"], current["scopes"]) == ("operations", ["operator"])
    # The audit log of the tenant shows which token was used.
    entries = api.client.get("/v1/audit", headers=lab).json()["data"]
    assert [entry["token_id"] for entry in entries] == [current["id"]] * 3
    theirs = api.client.get("/v1/audit", headers=operator).json()["data"]
    assert [entry["path"] for entry in theirs] == ["/v1/tenants"]


def test_refused_header_is_in_the_audit_log_of_the_callers_tenant(api: Api) -> None:
    admin = api.token("admin")
    refused(api.client.get("/v1/jobs", headers=acting(admin, "operations")), 403)
    entries = api.client.get("/v1/audit", headers=admin).json()["data"]
    assert [(entry["path"], entry["status"]) for entry in entries] == [("/v1/jobs", 403)]


def test_only_operators_make_operators(api: Api, operator: dict[str, str]) -> None:
    admin = api.token("admin", tenant="operations")
    for scopes in (["operator"], ["read", "operator"]):
        body = {"name": "x", "scopes": scopes}
        refused(api.client.post("/v1/tokens", json=body, headers=admin), 422, "scopes")
        assert api.client.post("/v1/tokens", json=body, headers=operator).status_code == 201
    current = api.client.get("/v1/tokens/current", headers=operator).json()
    path = f"/v1/tokens/{current['id']}"
    change = {"expires_in_days": 1}
    for refusal in (
        api.client.patch(path, json=change, headers=admin),
        api.client.patch(path, json={"max_queued_jobs": 0}, headers=admin),
        api.client.delete(path, headers=admin),
    ):
        problem = refused(refusal, 403, None, "forbidden")
        assert problem["detail"].endswith("only an operator may change it")
    assert api.client.patch(path, json=change, headers=operator).status_code == 200


def test_disabled_tenant_is_refused_until_it_is_enabled(api: Api, operator: dict[str, str]) -> None:
    api.dataset()
    worker = api.start(api.submit()["id"])
    path = "/v1/tenants/default"
    disabled = api.client.patch(path, json={"disabled": True}, headers=operator).json()
    assert disabled["disabled_at"] is not None
    problem = refused(api.client.get("/v1/jobs"), 401, None, "unauthenticated")
    assert problem["detail"].startswith("The tenant of the token is disabled.")
    # What runs continues, and an operator can see and stop it.
    assert worker.post("start").status_code == 200
    job = f"/v1/jobs/{worker.job_id}"
    in_default = acting(operator, "default")
    assert api.client.get(job, headers=in_default).json()["status"] == "running"
    assert api.client.post(f"{job}/cancel", headers=in_default).status_code == 202
    again = api.client.patch(path, json={"disabled": True}, headers=operator).json()
    assert again["disabled_at"] == disabled["disabled_at"]
    enabled = api.client.patch(path, json={"disabled": False}, headers=operator).json()
    assert enabled["disabled_at"] is None
    assert api.client.get("/v1/jobs").status_code == 200


def test_operator_cannot_disable_its_own_tenant(api: Api, operator: dict[str, str]) -> None:
    own = api.client.patch(
        "/v1/tenants/operations", json={"disabled": True}, headers=acting(operator, "default")
    )
    refused(own, 409, None, "would-lock-out")


def test_tenant_is_deleted_only_when_empty(api: Api, operator: dict[str, str]) -> None:
    dataset = api.dataset(tenant="lab")
    token = api.token("admin", tenant="lab")
    user = api.client.post("/v1/users", json={"name": "Ada"}, headers=token).json()["id"]
    body = {"dataset": "emoji"}
    submitted = api.client.post("/v1/jobs", json=body, headers=token | {"Idempotency-Key": "a"})
    job = submitted.json()["id"]
    path = "/v1/tenants/lab"
    problem = refused(api.client.delete(path, headers=operator), 409, None, "tenant-not-empty")
    assert problem["left"] == {"jobs": 1, "datasets": 1, "tokens": 1, "users": 1}
    assert "1 job, 1 data set, 1 valid token, 1 enabled user" in problem["detail"]
    current = api.client.get("/v1/tokens/current", headers=token).json()["id"]
    in_lab = acting(operator, "lab")
    api.client.post(f"/v1/jobs/{job}/cancel", headers=in_lab)
    assert api.client.delete(f"/v1/datasets/{dataset}", headers=in_lab).status_code == 204
    api.client.patch(f"/v1/users/{user}", json={"disabled": True}, headers=in_lab)
    api.client.delete(f"/v1/tokens/{current}", headers=in_lab)
    problem = refused(api.client.delete(path, headers=operator), 409)
    assert problem["left"] == {"jobs": 1}


def test_deleted_tenant_leaves_no_key_to_its_next_namesake(
    api: Api, operator: dict[str, str]
) -> None:
    token = api.token("submit", tenant="lab")
    current = api.client.get("/v1/tokens/current", headers=token).json()["id"]
    with api.database.write() as session:
        now = session.get_one(Tenant, "lab").created_at
        key = IdempotencyKey(tenant="lab", key="a", body_hash="x", answer={}, created_at=now)
        session.add(key)
    api.client.delete(f"/v1/tokens/{current}", headers=acting(operator, "lab"))
    assert api.client.delete("/v1/tenants/lab", headers=operator).status_code == 204
    with api.database.read() as session:
        assert session.get(IdempotencyKey, ("lab", "a")) is None
    refused(api.client.get("/v1/jobs", headers=token), 401)
