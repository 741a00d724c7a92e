"""Sessions of the page: their cookie, CSRF check, login codes and end."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select, update

from service.db.models import LoginCode, Token, WebSession
from service.sessions import service
from tests.support.api_under_test import Api, refused

COOKIE = "dasl_session"


@pytest.fixture
def page(api: Api) -> Iterator[Page]:
    """A browser without a session."""
    with TestClient(api.client.app) as browser:
        yield Page(api, browser)


class Page:
    """A browser with its cookies, which sends no token."""

    def __init__(self, api: Api, browser: TestClient) -> None:
        self.api, self.browser = api, browser
        self.csrf = ""

    def log_in(self, *scopes: Any, **options: Any) -> dict[str, Any]:
        """Log in with a new token; return the answer."""
        return self.log_in_with(token=text_of(self.api.token(*scopes or ["submit"], **options)))

    def log_in_with(self, **body: str) -> dict[str, Any]:
        answer = self.browser.post("/v1/session", json=body)
        assert answer.status_code == 201, answer.text
        shown: dict[str, Any] = answer.json()
        self.csrf = shown["csrf"]
        return shown

    def write(self, method: str, path: str, **options: Any) -> Any:
        headers = {"X-CSRF-Token": self.csrf} | options.pop("headers", {})
        return self.browser.request(method, path, headers=headers, **options)


def text_of(headers: dict[str, str]) -> str:
    return headers["Authorization"].removeprefix("Bearer ")


def count(api: Api, table: type[WebSession] | type[LoginCode]) -> int:
    with api.database.read() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def test_session_acts_with_the_scopes_of_its_token(page: Page) -> None:
    page.api.dataset()
    headers = page.api.token("submit")
    current = page.api.client.get("/v1/tokens/current", headers=headers).json()
    shown = page.log_in_with(token=text_of(headers))
    assert (current["scopes"], shown["scopes"]) == (["submit"], ["read", "submit"])
    changing = ("last_used_at", "scopes")
    assert {**current, **dict.fromkeys(changing)} == {
        name: shown[name] if name not in changing else None for name in current
    }
    assert page.browser.get("/v1/session").json()["csrf"] == shown["csrf"]
    job = page.write("POST", "/v1/jobs", json={"dataset": "emoji"})
    assert job.status_code == 201, job.text
    assert job.json()["token_id"] == shown["id"]
    assert page.browser.get("/v1/jobs").json()["data"][0]["id"] == job.json()["id"]
    problem = refused(page.browser.get("/v1/tokens"), 403, None, "forbidden")
    assert "the token has: submit" in problem["detail"]


def test_cookie_is_for_this_site_only_and_unreadable_for_scripts(page: Page) -> None:
    token = text_of(page.api.token("read"))
    answer = page.browser.post("/v1/session", json={"token": token})
    attributes = answer.headers["set-cookie"].lower().split("; ")
    week = timedelta(days=7).total_seconds()
    assert {"httponly", "samesite=strict", f"max-age={week:.0f}"} <= set(attributes)
    # A browser takes the folder of the address, which is below a proxy's path if there is one.
    assert not any(attribute.startswith("path=") for attribute in attributes)
    assert "secure" not in attributes
    assert token not in answer.text
    with TestClient(page.api.client.app, base_url="https://dasl.example.org") as browser:
        answer = browser.post("/v1/session", json={"token": token})
        assert "secure" in answer.headers["set-cookie"].lower().split("; ")


def test_session_never_outlives_its_token_and_stores_only_hashes(page: Page) -> None:
    created = page.api.client.post(
        "/v1/tokens", json={"name": "x", "expires_in_days": 0.5}, headers=page.api.token("admin")
    ).json()
    shown = page.log_in_with(token=created["token"])
    assert shown["session_expires_at"] == created["expires_at"]
    secrets = (page.browser.cookies[COOKIE], shown["csrf"], created["token"])
    with page.api.database.read() as session:
        row = str(vars(session.scalars(select(WebSession)).one()))
    assert not [secret for secret in secrets if secret in row]


@pytest.mark.parametrize("end", ["logout", "revoked", "token expired", "session expired"])
def test_session_ends_at_once(page: Page, end: str) -> None:
    token_id = page.log_in()["id"]
    cookie = page.browser.cookies[COOKIE]
    past = datetime.now(UTC) - timedelta(seconds=1)
    if end == "logout":
        answer = page.write("DELETE", "/v1/session")
        assert (answer.status_code, answer.content) == (204, b"")
        assert COOKIE not in page.browser.cookies, "the browser forgets it, too"
        assert count(page.api, WebSession) == 0
    elif end == "revoked":
        admin = page.api.token("admin")
        page.api.client.delete(f"/v1/tokens/{token_id}", headers=admin).raise_for_status()
    else:
        table, column = (
            (Token, Token.id) if end == "token expired" else (WebSession, WebSession.token_id)
        )
        with page.api.database.write() as session:
            session.execute(update(table).where(column == token_id).values(expires_at=past))
    page.browser.cookies.set(COOKIE, cookie)
    for path in ("/v1/session", "/v1/jobs"):
        refused(page.browser.get(path), 401, None, "unauthenticated")


def test_session_of_a_disabled_user_is_refused(page: Page) -> None:
    admin = page.api.token("admin")
    user = page.api.client.post("/v1/users", json={"name": "Ada"}, headers=admin).json()["id"]
    body = {"name": "x", "user_id": user}
    created = page.api.client.post("/v1/tokens", json=body, headers=admin).json()
    page.log_in_with(token=created["token"])
    change = {"disabled": True}
    page.api.client.patch(f"/v1/users/{user}", json=change, headers=admin).raise_for_status()
    refused(page.browser.get("/v1/jobs"), 401, None, "unauthenticated")
    refused(page.browser.post("/v1/session", json={"token": created["token"]}), 401)


@pytest.mark.parametrize("token", [None, "", "0" * 64, "\xe4", "of another session"])
def test_write_needs_the_csrf_token_of_the_session(page: Page, token: str | None) -> None:
    page.api.dataset()
    if token == "of another session":
        token = page.log_in()["csrf"]
    page.log_in()
    headers = {} if token is None else {b"X-CSRF-Token": token.encode("latin-1")}
    for method, path in (
        ("POST", "/v1/jobs"),
        ("DELETE", "/v1/session"),
        ("PATCH", "/v1/jobs/x"),
        ("PUT", "/v1/datasets/x/content"),
    ):
        answer = page.browser.request(method, path, headers=headers, json={"dataset": "emoji"})
        problem = refused(answer, 403, None, "csrf-token")
        assert "GET /v1/session" in problem["detail"]
    assert page.browser.get("/v1/jobs").json()["data"] == []
    assert page.write("DELETE", "/v1/session").status_code == 204


@pytest.mark.parametrize(
    ("headers", "is_own"),
    [
        ({"Sec-Fetch-Site": "same-origin", "Origin": "http://testserver"}, True),
        ({"Sec-Fetch-Site": "none"}, True),
        ({"Origin": "http://testserver"}, True),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        # Another port of the same host is the same site, which the cookie alone does not keep away.
        ({"Sec-Fetch-Site": "same-site", "Origin": "http://testserver:81"}, False),
        ({"Origin": "http://testserver:81"}, False),
        ({"Origin": "https://evil.example.org"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": "http://[testserver"}, False),
    ],
)
def test_write_from_another_origin_is_refused(
    page: Page, headers: dict[str, str], is_own: bool
) -> None:
    body = {"token": text_of(page.api.token("submit"))}
    answer = page.browser.post("/v1/session", json=body, headers=headers)
    assert answer.status_code == (201 if is_own else 403)
    page.api.dataset()
    page.log_in("submit")
    answer = page.write("POST", "/v1/jobs", headers=headers, json={"dataset": "emoji"})
    if is_own:
        assert answer.status_code == 201
    else:
        refused(answer, 403, None, "cross-origin")
    # Reading changes nothing; the browser keeps the answer from the other page.
    assert page.browser.get("/v1/jobs", headers=headers).status_code == 200


def test_token_takes_precedence_over_the_cookie(page: Page) -> None:
    page.log_in("submit")
    headers = page.api.token("admin", tenant="other")
    shown = page.browser.get("/v1/tokens/current", headers=headers).json()
    assert shown["tenant"] == "other"
    # No CSRF token, as no other page can make a browser send this header.
    body = {"name": "x", "scopes": ["read"]}
    assert page.browser.post("/v1/tokens", json=body, headers=headers).status_code == 201
    refused(page.browser.get("/v1/jobs", headers={"Authorization": "Bearer x"}), 401)
    refused(page.browser.get("/v1/session", headers=headers), 401)


def test_worker_api_ignores_the_cookie(page: Page) -> None:
    page.api.dataset()
    worker = page.api.start(page.api.submit()["id"])
    page.log_in("operator")
    for cookie in (page.browser.cookies[COOKIE], worker.token):
        page.browser.cookies.clear()
        page.browser.cookies.set(COOKIE, cookie)
        path = f"/worker/v1/runs/{worker.run_id}/heartbeat"
        refused(page.write("POST", path, json={"progress": {}}), 401, None, "unauthenticated")


def test_session_creates_no_login_codes(page: Page) -> None:
    """One would start a new session after the logout."""
    page.log_in("admin")
    refused(page.write("POST", "/v1/session/codes"), 403, None, "forbidden")


def test_login_code_works_once(page: Page) -> None:
    headers = page.api.token("submit")
    created = page.api.client.post("/v1/session/codes", headers=headers)
    assert created.status_code == 201
    code = created.json()["code"]
    life = datetime.fromisoformat(created.json()["expires_at"]) - datetime.now(UTC)
    assert timedelta(minutes=9) < life <= timedelta(minutes=10)
    with page.api.database.read() as session:
        assert code not in str(vars(session.scalars(select(LoginCode)).one()))
    refused(page.browser.get("/v1/jobs", headers={"Authorization": f"Bearer {code}"}), 401)
    shown = page.log_in_with(code=code)
    mine = page.api.client.get("/v1/tokens/current", headers=headers).json()
    assert shown["id"] == mine["id"]
    problem = refused(page.browser.post("/v1/session", json={"code": code}), 401)
    assert "dasl open" in problem["detail"]
    assert count(page.api, LoginCode) == 0


def test_login_code_replaces_another_tokens_session_only_if_asked(page: Page) -> None:
    """A stranger's link would otherwise log a person in to the stranger's tenant, without a word."""
    own, other = page.api.token("submit"), page.api.token("submit", tenant="other")
    page.log_in_with(token=text_of(own))

    def code_of(token: dict[str, str]) -> str:
        code: str = page.api.client.post("/v1/session/codes", headers=token).json()["code"]
        return code

    page.log_in_with(code=code_of(own))
    code = code_of(other)
    answer = page.browser.post("/v1/session", json={"code": code})
    problem = refused(answer, 409, None, "other-session")
    assert "test of the tenant default" in problem["detail"]
    assert "test of the tenant other" in problem["detail"]
    assert page.browser.get("/v1/session").json()["tenant"] == "default"
    answer = page.browser.post("/v1/session", json={"code": code, "replace": True})
    assert (answer.status_code, answer.json()["tenant"]) == (201, "other")
    assert (
        page.write(
            "DELETE", "/v1/session", headers={"X-CSRF-Token": answer.json()["csrf"]}
        ).status_code
        == 204
    )
    page.log_in_with(code=code_of(own))


def test_login_code_expires_and_dies_with_its_token(page: Page) -> None:
    codes = []
    for _ in range(2):
        headers = page.api.token("read")
        codes.append(page.api.client.post("/v1/session/codes", headers=headers).json()["code"])
        token_id = page.api.client.get("/v1/tokens/current", headers=headers).json()["id"]
    admin = page.api.token("admin")
    page.api.client.delete(f"/v1/tokens/{token_id}", headers=admin).raise_for_status()
    refused(page.browser.post("/v1/session", json={"code": codes[1]}), 401)
    with page.api.database.write() as session:
        past = datetime.now(UTC) - timedelta(seconds=1)
        session.execute(update(LoginCode).values(expires_at=past))
    refused(page.browser.post("/v1/session", json={"code": codes[0]}), 401)


@pytest.mark.dialect
def test_login_code_is_used_once_by_requests_at_the_same_time(page: Page) -> None:
    headers = page.api.token("read")
    code = page.api.client.post("/v1/session/codes", headers=headers).json()["code"]

    def log_in(_: int) -> int:
        return page.api.client.post("/v1/session", json={"code": code}).status_code

    with ThreadPoolExecutor(8) as threads:
        statuses = sorted(threads.map(log_in, range(8)))
    assert statuses == [201, *[401] * 7]
    assert count(page.api, WebSession) == 1


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"token": "x", "code": "x"}, 422),
        ({"token": None}, 422),
        ({"token": 1}, 422),
        ({"token": ""}, 422),
        ({"token": "x" * 501}, 422),
        ({"user": "x"}, 422),
        ([], 422),
        ({"token": "dasl_wrong"}, 401),
        ({"code": "dasl_wrong"}, 401),
        ({"code": "\U0001f600"}, 401),
    ],
)
def test_invalid_login_is_refused(page: Page, body: object, status: int) -> None:
    answer = page.browser.post("/v1/session", json=body)
    refused(answer, status)
    assert "set-cookie" not in answer.headers


def test_failed_logins_are_limited(page: Page) -> None:
    limit = page.api.settings.auth_failures_per_minute
    bodies = [{"token": "dasl_wrong"}, {"code": "dasl_wrong"}]
    for number in range(limit):
        refused(page.browser.post("/v1/session", json=bodies[number % 2]), 401)
    refused(page.browser.post("/v1/session", json=bodies[0]), 429, None, "too-many-failures")
    page.log_in()


def test_number_of_sessions_and_codes_of_a_token_is_bounded(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_MAX_SESSIONS", 3)
    monkeypatch.setattr(service, "_MAX_CODES", 2)
    page.log_in()
    others = page.browser.cookies[COOKIE]
    headers = page.api.token("read")
    cookies, codes = [], []
    for _ in range(4):
        page.log_in_with(token=text_of(headers))
        cookies.append(page.browser.cookies[COOKIE])
        codes.append(page.api.client.post("/v1/session/codes", headers=headers).json()["code"])

    def status(cookie: str) -> int:
        page.browser.cookies.clear()
        page.browser.cookies.set(COOKIE, cookie)
        return page.browser.get("/v1/session").status_code

    assert [status(cookie) for cookie in [others, *cookies]] == [200, 401, 200, 200, 200]
    statuses = [page.browser.post("/v1/session", json={"code": code}).status_code for code in codes]
    assert statuses == [401, 401, 201, 201]


def test_expired_rows_are_removed_by_the_next_login(page: Page) -> None:
    page.log_in()
    with page.api.database.write() as session:
        session.execute(update(WebSession).values(expires_at=datetime.now(UTC)))
    page.log_in()
    assert count(page.api, WebSession) == 1


def test_session_is_removed_with_its_token(page: Page) -> None:
    token_id = page.log_in()["id"]
    page.api.client.post("/v1/session/codes").raise_for_status()
    with page.api.database.write() as session:
        session.delete(session.get_one(Token, token_id))
    assert count(page.api, WebSession) == 0


def test_live_stream_ends_with_its_session(page: Page) -> None:
    page.api.dataset()
    job = page.api.submit()["id"]
    page.log_in()
    accept = {"Accept": "text/event-stream"}
    with page.browser.stream("GET", f"/v1/jobs/{job}/events", headers=accept) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("retry")
        assert page.write("DELETE", "/v1/session").status_code == 204
        assert [line for line in lines if line.startswith("id")] == ["id: 1"]


def test_logins_and_logouts_are_in_the_audit_log(page: Page) -> None:
    token_id = page.log_in()["id"]
    page.write("DELETE", "/v1/session")
    admin = page.api.token("admin")
    entries = page.api.client.get("/v1/audit", headers=admin).json()["data"]
    assert [(entry["method"], entry["path"], entry["token_id"]) for entry in entries] == [
        ("DELETE", "/v1/session", token_id),
        ("POST", "/v1/session", token_id),
    ]
