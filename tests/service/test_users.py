"""Users of a tenant: their role limits their tokens, and disabling them ends these."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from service import ids
from service.db.models import Token, User
from tests.support.api_under_test import Api, refused


@pytest.fixture
def admin(api: Api) -> dict[str, str]:
    return api.token("admin")


def create(api: Api, admin: dict[str, str], **fields: Any) -> Any:
    answer = api.client.post("/v1/users", json={"name": "Ada", **fields}, headers=admin)
    assert answer.status_code == 201, answer.text
    return answer.json()


def token_of(api: Api, admin: dict[str, str], user: str, *scopes: str) -> Any:
    body = {"name": "laptop", "user_id": user, "scopes": scopes or ("read",)}
    return api.client.post("/v1/tokens", json=body, headers=admin)


def headers_of(answer: Any) -> dict[str, str]:
    assert answer.status_code == 201, answer.text
    return {"Authorization": f"Bearer {answer.json()['token']}"}


def test_user_can_be_created_listed_shown_and_changed(api: Api, admin: dict[str, str]) -> None:
    ada = create(api, admin, email="ada@example.org", role="admin")
    assert ids.is_id("usr", ada["id"])
    assert (ada["role"], ada["disabled_at"], ada["last_login_at"]) == ("admin", None, None)
    bob = create(api, admin, name="Bob")
    assert bob["role"] == "submit"
    listed = api.client.get("/v1/users", headers=admin).json()["data"]
    assert listed == [bob, ada]
    page = api.client.get("/v1/users", params={"after": bob["id"]}, headers=admin).json()["data"]
    assert page == [ada]
    path = f"/v1/users/{ada['id']}"
    assert api.client.get(path, headers=admin).json() == ada
    changed = api.client.patch(path, json={"name": "Ada L.", "email": None}, headers=admin).json()
    assert changed == {**ada, "name": "Ada L.", "email": None}
    for bad in ({"role": "root"}, {"role": None}, {"name": ""}, {"disabled": None}, {"id": "x"}):
        refused(api.client.patch(path, json=bad, headers=admin), 422, next(iter(bad)))


def test_disabled_user_is_refused_at_once(api: Api, admin: dict[str, str]) -> None:
    user = create(api, admin)["id"]
    headers = headers_of(token_of(api, admin, user))
    assert api.client.get("/v1/jobs", headers=headers).status_code == 200
    path = f"/v1/users/{user}"
    assert api.client.patch(path, json={"disabled": True}, headers=admin).status_code == 200
    problem = refused(api.client.get("/v1/jobs", headers=headers), 401, None, "unauthenticated")
    assert problem["detail"].startswith("The user of the token is disabled.")
    refused(token_of(api, admin, user), 409, None, "user-disabled")
    api.client.patch(path, json={"disabled": False}, headers=admin)
    assert api.client.get("/v1/jobs", headers=headers).status_code == 200


def test_role_limits_the_tokens_of_a_user(api: Api, admin: dict[str, str]) -> None:
    user = create(api, admin, role="admin")["id"]
    headers = headers_of(token_of(api, admin, user, "submit", "admin"))
    assert api.client.get("/v1/users", headers=headers).status_code == 200
    api.client.patch(f"/v1/users/{user}", json={"role": "read"}, headers=admin)
    problem = refused(api.client.get("/v1/users", headers=headers), 403)
    assert "the token has: read" in problem["detail"]
    # The token has the scope `admin` only, which includes `read`.
    assert api.client.get("/v1/jobs", headers=headers).status_code == 200
    refused(token_of(api, admin, user, "submit"), 422, "scopes")
    assert token_of(api, admin, user, "read").json()["user_id"] == user


def test_token_of_another_tenants_user_is_refused(api: Api, admin: dict[str, str]) -> None:
    user = create(api, admin)["id"]
    for tenant, name in (("other", user), ("default", "x"), ("default", f"usr_{'0' * 26}")):
        refused(token_of(api, api.token("admin", tenant=tenant), name), 404, None, "not-found")


def test_only_operators_make_users_operators(api: Api, admin: dict[str, str]) -> None:
    body = {"name": "Root", "role": "operator"}
    refused(api.client.post("/v1/users", json=body, headers=admin), 422, "role")
    operator = api.token("operator")
    path = f"/v1/users/{create(api, operator, role='operator')['id']}"
    both = {"disabled": False, "role": "admin"}
    assert api.client.patch(path, json=both, headers=operator).json()["role"] == "admin"
    refused(api.client.patch(path, json={"role": "operator"}, headers=admin), 422, "role")
    assert api.client.patch(path, json={"role": "operator"}, headers=operator).status_code == 200


def test_only_operators_change_operators_and_their_tokens(api: Api, admin: dict[str, str]) -> None:
    operator = api.token("operator")
    root = create(api, operator, role="operator")["id"]
    token = f"/v1/tokens/{token_of(api, operator, root).json()['id']}"
    user = f"/v1/users/{root}"
    problem = refused(
        api.client.patch(user, json={"disabled": True}, headers=admin), 403, None, "forbidden"
    )
    assert problem["detail"].endswith("only an operator may change it or its tokens")
    refused(api.client.delete(token, headers=admin), 403, None, "forbidden")
    refused(api.client.patch(token, json={"expires_in_days": 1}, headers=admin), 403)
    refused(token_of(api, admin, root), 403, None, "forbidden")
    its = headers_of(token_of(api, operator, root, "admin"))
    assert api.client.delete(token, headers=its).status_code == 204, "its own, with a lower scope"
    assert token_of(api, its, root).status_code == 201
    assert api.client.patch(user, json={"disabled": True}, headers=operator).status_code == 200


def test_new_token_belongs_to_the_user_of_its_creator_and_ends_with_it(
    api: Api, admin: dict[str, str]
) -> None:
    ada = create(api, admin, role="admin")["id"]
    body = {"name": "laptop", "user_id": ada, "scopes": ["admin"], "expires_in_days": 1}
    parent = api.client.post("/v1/tokens", json=body, headers=admin)
    hers = headers_of(parent)

    def new(headers: dict[str, str], **fields: Any) -> Any:
        answer = api.client.post("/v1/tokens", json={"name": "x", **fields}, headers=headers)
        return answer.json()["user_id"], answer.json()["expires_at"]

    end = parent.json()["expires_at"]
    assert new(hers) == (ada, end)
    assert new(hers, user_id=None, expires_at=None) == (None, None), "unless the request says so"
    later = (datetime.now(UTC) + timedelta(days=9)).isoformat().replace("+00:00", "Z")
    assert new(hers, expires_at=later) == (ada, later)
    assert new(admin) == (None, None)
    api.client.patch(f"/v1/tokens/{parent.json()['id']}", json={"expires_at": None}, headers=admin)
    assert new(hers) == (ada, None)
    operator = api.token("operator")
    root = create(api, operator, role="operator")["id"]
    body = {**body, "user_id": root, "scopes": ["operator"]}
    its = headers_of(api.client.post("/v1/tokens", json=body, headers=operator))
    assert new(its) == (root, None)
    other = its | {"DASL-Tenant": "other"}
    api.token("read", tenant="other")
    assert new(other) == (None, None), "the user is of another tenant"


def test_scopes_of_a_newer_version_grant_nothing(api: Api) -> None:
    headers = api.token("read")
    token = api.client.get("/v1/tokens/current", headers=headers).json()["id"]
    with api.database.write() as session:
        session.get_one(Token, token).scopes = ["emperor"]
    problem = refused(api.client.get("/v1/jobs", headers=headers), 403, None, "forbidden")
    assert "the token has: none" in problem["detail"]


def expire(api: Api, token: str, at: datetime) -> None:
    """Move the expiry of a token, as time does."""
    with api.database.write() as session:
        session.get_one(Token, token).expires_at = at


def test_expired_token_is_refused_with_the_reason(api: Api, admin: dict[str, str]) -> None:
    before = datetime.now(UTC)
    body = {"name": "short", "expires_in_days": 0.5}
    answer = api.client.post("/v1/tokens", json=body, headers=admin)
    token, headers = answer.json(), headers_of(answer)
    assert token["last_used_at"] is None
    expires_at = datetime.fromisoformat(token["expires_at"])
    assert before + timedelta(hours=12) <= expires_at <= datetime.now(UTC) + timedelta(hours=12)
    assert api.client.get("/v1/jobs", headers=headers).status_code == 200
    expire(api, token["id"], datetime(2026, 1, 2, 3, 4, tzinfo=UTC))
    problem = refused(api.client.get("/v1/jobs", headers=headers), 401, None, "unauthenticated")
    assert "expired at 2026-01-02 03:04 UTC" in problem["detail"]
    path = f"/v1/tokens/{token['id']}"
    extended = api.client.patch(path, json={"expires_at": "2100-01-01T00:00:00"}, headers=admin)
    assert extended.json()["expires_at"].startswith("2100-01-01T00:00:00")
    assert api.client.get("/v1/jobs", headers=headers).status_code == 200
    never = api.client.patch(path, json={"expires_at": None}, headers=admin).json()
    assert never["expires_at"] is None
    unchanged = api.client.patch(path, json={"max_gpus": 1}, headers=admin).json()
    assert unchanged["expires_at"] is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("expires_in_days", 0),
        ("expires_in_days", -1),
        ("expires_in_days", 1e9),
        ("expires_at", "2020-01-01T00:00:00Z"),
        ("expires_at", "yesterday"),
        ("expires_at", "0001-01-01T00:00:00+14:00"),
    ],
)
def test_invalid_expiry_is_refused(
    api: Api, admin: dict[str, str], field: str, value: object
) -> None:
    body = {"name": "x", field: value}
    refused(api.client.post("/v1/tokens", json=body, headers=admin), 422, field)
    current = api.client.get("/v1/tokens/current", headers=admin).json()["id"]
    change = api.client.patch(f"/v1/tokens/{current}", json={field: value}, headers=admin)
    refused(change, 422, field)
    assert "datetime" not in change.json()["errors"][0]["given"]


def test_expiry_given_twice_is_refused(api: Api, admin: dict[str, str]) -> None:
    body = {"name": "x", "expires_at": "2100-01-01T00:00:00Z", "expires_in_days": 1}
    answer = api.client.post("/v1/tokens", json=body, headers=admin)
    refused(answer, 422, "expires_in_days")


@pytest.mark.dialect
def test_last_use_is_recorded_once_a_minute(api: Api, admin: dict[str, str]) -> None:
    reader = api.token("read")
    token = api.client.get("/v1/tokens/current", headers=reader).json()["id"]

    def last_used_at() -> datetime | None:
        with api.database.read() as session:
            return session.get_one(Token, token).last_used_at

    first = last_used_at()
    assert first is not None
    assert datetime.now(UTC) - first < timedelta(seconds=30)
    api.client.get("/v1/jobs", headers=reader)
    assert last_used_at() == first
    # Another process recorded it less than a minute ago: this one does not.
    older = first - timedelta(seconds=50)
    with api.database.write() as session:
        session.get_one(Token, token).last_used_at = older
    api.client.get("/v1/jobs", headers=reader)
    assert last_used_at() == older


def test_jobs_name_who_has_submitted_them(api: Api, admin: dict[str, str]) -> None:
    """Everyone in a tenant may cancel its jobs, and must see whose they are."""
    ada = create(api, admin)
    of_ada = headers_of(token_of(api, admin, ada["id"], "submit"))
    api.dataset()
    submitted = api.client.post("/v1/jobs", json={"dataset": "emoji"}, headers=of_ada)
    assert submitted.status_code == 201, submitted.text
    assert submitted.json()["submitted_by"] == "Ada"
    other = api.client.post("/v1/jobs", json={"dataset": "emoji"}, headers=api.token("submit"))
    names = ["test", "Ada"]
    for path in ("/v1/jobs", "/v1/jobs?summary=true"):
        assert [job["submitted_by"] for job in api.client.get(path).json()["data"]] == names
    shown = [api.client.get(f"/v1/jobs/{each.json()['id']}") for each in (other, submitted)]
    assert [each.json()["submitted_by"] for each in shown] == names
    with api.database.write() as session:
        session.delete(session.get_one(User, ada["id"]))
    shown_again = api.client.get(f"/v1/jobs/{submitted.json()['id']}").json()
    assert shown_again["submitted_by"] == "laptop"
