"""Limits of a tenant at submission and at changes, and the use of the cluster in the API."""

from datetime import UTC, datetime
from typing import Any

import pytest

from service.db.models import Tenant, Usage
from service.usage import endpoints
from tests.support.api_under_test import Api, refused


def limit(api: Api, **limits: Any) -> None:
    with api.database.write() as session:
        session.merge(Tenant(name="default", created_at=datetime.now(UTC), **limits))


def submit(api: Api, headers: dict[str, str], **spec: Any) -> Any:
    return api.client.post("/v1/jobs", json={"dataset": "emoji", **spec}, headers=headers)


def test_caps_hold_for_submission_changes_and_clones(api: Api) -> None:
    api.dataset()
    headers = api.token("submit", "read")
    limit(api, max_priority=5, max_hours=30.0)
    refused(submit(api, headers, priority=6), 422, "priority")
    refused(submit(api, headers, resources={"max_hours": 31}), 422, "resources.max_hours")
    job = submit(api, headers, priority=5).json()["id"]
    path = f"/v1/jobs/{job}"
    for change, field in (
        ({"priority": 6}, "priority"),
        ({"resources": {"max_hours": 31}}, "resources.max_hours"),
    ):
        refused(api.client.patch(path, json=change, headers=headers), 422, field)
    body = {"changes": {"priority": 6}, "checkpoint": None}
    refused(api.client.post(f"{path}/clone", json=body, headers=headers), 422, "priority")


@pytest.mark.dialect
def test_queue_quota_of_a_tenant_counts_all_its_tokens(api: Api) -> None:
    api.dataset()
    limit(api, max_queued_jobs=1)
    assert submit(api, api.token("submit")).status_code == 201
    problem = refused(submit(api, api.token("submit")), 429)
    assert "of this tenant is 1" in problem["detail"]


def use(api: Api, number: int, *, tags: dict[str, str] | None = None, **columns: Any) -> None:
    with api.database.write() as session:
        hour = datetime(2026, 1, 1, 5, tzinfo=UTC)
        defaults = {"tenant": "default", "gpu_seconds": 7200.0, "cpu_seconds": 3600.0}
        row = {"job_id": f"job_{number}", "hour": hour, **defaults, **columns}
        row.setdefault("account_id", row.get("token_id", "tok_of_nobody"))
        session.add(Usage(tags=tags or {}, **row))


PATH, DAY = "/v1/usage", {"from": "2026-01-01", "to": "2026-01-02"}


def test_usage_is_the_tenants_for_an_administrator_only(api: Api) -> None:
    use(api, 0)
    use(api, 1, tenant="other")
    (row,) = api.client.get(PATH, params=DAY, headers=api.token("admin")).json()["data"]
    assert (row["jobs"], row["gpu_hours"], row["cpu_hours"]) == (1, 2.0, 1.0)
    assert api.client.get(PATH, params=DAY, headers=api.token("read")).json()["data"] == []


@pytest.mark.dialect
@pytest.mark.parametrize("key", ["team", 'a "b"', "$.x", "a.b", "'"])
def test_usage_by_tag_adds_up_the_values_of_any_key(api: Api, key: str) -> None:
    use(api, 0, tags={key: "vision", "x": "y"})
    use(api, 1, tags={key: "vision"}, hour=datetime(2026, 1, 1, 6, tzinfo=UTC))
    use(api, 2, tags={key: "speech"}, gpu_seconds=3600.0)
    use(api, 3, tags={"other": "vision"}, gpu_seconds=0.0)
    use(api, 4, tags={key: "vision"}, tenant="other")
    answer = api.client.get(
        PATH, params={"group_by": f"tag:{key}"} | DAY, headers=api.token("admin")
    ).json()
    rows = [(row["value"], row["jobs"], row["gpu_hours"]) for row in answer["data"]]
    assert rows == [("vision", 2, 4.0), ("speech", 1, 1.0), (None, 1, 0.0)]
    assert answer["is_complete"]


@pytest.mark.dialect
@pytest.mark.parametrize("group_by", ["token", "tag:n"])
def test_usage_is_limited_to_the_groups_with_the_most(
    api: Api, monkeypatch: pytest.MonkeyPatch, group_by: str
) -> None:
    monkeypatch.setattr(endpoints, "_MAX_GROUPS", 2)
    for number in range(3):
        token_id = f"tok_{number}"
        use(api, number, tags={"n": token_id}, token_id=token_id, gpu_seconds=float(number))
    answer = api.client.get(
        PATH, params={"group_by": group_by} | DAY, headers=api.token("admin")
    ).json()
    assert [row["value"] for row in answer["data"]] == ["tok_2", "tok_1"]
    assert not answer["is_complete"]


def test_usage_is_told_by_user_and_limited_to_the_callers(api: Api) -> None:
    admin = api.token("admin")
    ada = api.client.post("/v1/users", json={"name": "Ada"}, headers=admin).json()["id"]
    body = {"name": "x", "user_id": ada, "scopes": ["read"]}
    first, second = (
        api.client.post("/v1/tokens", json=body, headers=admin).json() for _ in range(2)
    )
    use(api, 0, token_id=first["id"], account_id=ada)
    use(api, 1, token_id=second["id"], account_id=ada)
    use(api, 2, token_id="tok_0", gpu_seconds=3600.0)
    params = {"group_by": "user"} | DAY
    rows = api.client.get(PATH, params=params, headers=admin).json()["data"]
    assert [(row["value"], row["name"], row["jobs"], row["gpu_hours"]) for row in rows] == [
        (ada, "Ada", 2, 4.0),
        (None, None, 1, 1.0),
    ]
    own = {"Authorization": f"Bearer {second['token']}"}
    assert api.client.get(PATH, params=params, headers=own).json()["data"] == rows[:1]
    by_token = api.client.get(PATH, params=DAY, headers=own).json()["data"]
    assert {row["value"] for row in by_token} == {first["id"], second["id"]}


@pytest.mark.parametrize("group_by", ["", "tag", "tag:", "account", "tag:" + "x" * 100, "tag:\0"])
def test_usage_refuses_unknown_groups(api: Api, group_by: str) -> None:
    answer = api.client.get(PATH, params={"group_by": group_by} | DAY)
    refused(answer, 422, "group_by")


@pytest.mark.parametrize(
    "query",
    ["from=2026-01-02&to=2026-01-01", "from=2020-01-01&to=2026-01-01", "to=0001-01-01", "from=x"],
)
def test_usage_refuses_invalid_times(api: Api, query: str) -> None:
    refused(api.client.get(f"/v1/usage?{query}", headers=api.token("read")), 422)
