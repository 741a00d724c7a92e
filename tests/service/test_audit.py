"""The audit log: exactly one row for each change, and no secret in any row."""

import ast
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from service.db.models import AuditEntry, Job
from service.jobs import submission
from tests.support.api_under_test import Api, refused


def audit_log(api: Api, **filters: Any) -> list[dict[str, Any]]:
    answer = api.client.get("/v1/audit", params=filters, headers=api.token("admin"))
    assert answer.status_code == 200, answer.text
    data: list[dict[str, Any]] = answer.json()["data"]
    return data


def rows(api: Api) -> int:
    with api.database.read() as session:
        return session.scalar(select(func.count()).select_from(AuditEntry)) or 0


def test_audit_log_has_one_row_per_user_change(api: Api) -> None:
    admin = api.token("admin")
    api.client.headers.update(admin)
    folder = api.settings.home.parent / "folder"
    folder.mkdir()
    api.dataset()
    job = api.submit()["id"]
    dataset = api.client.post("/v1/datasets", json={"name": "d", "uri": str(folder)}).json()["id"]
    token = api.client.post("/v1/tokens", json={"name": "x", "scopes": ["read"]}).json()["id"]
    for method, path, body in (
        ("PATCH", f"/v1/jobs/{job}", {"priority": 3}),
        ("POST", f"/v1/jobs/{job}/pause", None),
        ("POST", f"/v1/jobs/{job}/resume", None),
        ("POST", f"/v1/jobs/{job}/cancel", None),
        ("DELETE", f"/v1/datasets/{dataset}", None),
        ("DELETE", f"/v1/tokens/{token}", None),
    ):
        answer = api.client.request(method, path, json=body)
        assert answer.is_success, answer.text
    entries = audit_log(api)
    assert [(entry["method"], entry["path"], entry["status"]) for entry in reversed(entries)] == [
        ("POST", "/v1/jobs", 201),
        ("POST", "/v1/datasets", 201),
        ("POST", "/v1/tokens", 201),
        ("PATCH", f"/v1/jobs/{job}", 200),
        ("POST", f"/v1/jobs/{job}/pause", 202),
        ("POST", f"/v1/jobs/{job}/resume", 202),
        ("POST", f"/v1/jobs/{job}/cancel", 202),
        ("DELETE", f"/v1/datasets/{dataset}", 204),
        ("DELETE", f"/v1/tokens/{token}", 204),
    ]
    assert {(entry["token_name"], entry["address"]) for entry in entries} == {
        ("test", "testclient")
    }
    assert len({entry["token_id"] for entry in entries}) == 1


EXPERIMENT = {"name": "x", "spec": {"dataset": "emoji"}, "variants": {"a": {}, "b": {}}}


def test_audit_log_has_no_row_for_requests_without_effect(api: Api) -> None:
    api.dataset()
    worker = api.start(api.submit()["id"])
    before = rows(api)
    assert worker.post("start").status_code == 200
    assert worker.post("finish", outcome="succeeded").status_code == 204
    for method, path, body, status in (
        ("GET", "/v1/jobs", None, 200),
        ("POST", "/v1/jobs/validate", {"dataset": "emoji"}, 200),
        ("POST", "/v1/experiments/validate", EXPERIMENT, 200),
        ("POST", "/v1/jobs", {"dataset": "nowhere"}, 422),
        ("POST", "/v1/jobs", {"dataset": 5}, 422),
        ("POST", f"/v1/jobs/{worker.job_id}/cancel", None, 409),
        ("DELETE", "/v1/datasets/ds_nowhere", None, 404),
    ):
        assert api.client.request(method, path, json=body).status_code == status
    assert api.client.post("/v1/jobs", headers={"Authorization": "Bearer x"}).status_code == 401
    assert rows(api) == before


def test_audit_log_has_one_row_per_forbidden_request(api: Api) -> None:
    reader = api.token("read")
    refused(api.client.post("/v1/jobs", json={"dataset": "x"}, headers=reader), 403)
    refused(api.client.get("/v1/audit", headers=reader), 403)
    # Neither a token in the place of an id nor a NUL byte reaches the database.
    secret = reader["Authorization"].removeprefix("Bearer ")
    refused(api.client.delete(f"/v1/tokens/{secret}", headers=reader), 403)
    refused(api.client.delete(f"/v1/tokens/a%00b%ff?token={secret}", headers=reader), 403)
    refused(api.client.delete(f"/v1/tokens/{'x' * 5000}", headers=reader), 403)
    entries = audit_log(api)
    assert {entry["status"] for entry in entries} == {403}
    paths = [entry["path"] for entry in reversed(entries)]
    assert paths[:3] == ["/v1/jobs", "/v1/audit", "/v1/tokens/dasl_..."]
    assert paths[3].startswith("/v1/tokens/a%00b")
    assert len(paths[4]) == 500
    assert secret not in str(entries)


@pytest.mark.dialect
def test_failed_change_leaves_neither_change_nor_audit_row(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.dataset()

    def broken(*_: object) -> None:
        raise RuntimeError("the disk is full")

    monkeypatch.setattr("service.api.transaction.audit_log.record_change", broken)
    with pytest.raises(RuntimeError, match="the disk is full"):
        api.submit()
    with api.database.read() as session:
        assert session.scalars(select(Job)).all() == []
    monkeypatch.undo()
    monkeypatch.setattr(submission, "submit", broken)
    with pytest.raises(RuntimeError, match="the disk is full"):
        api.submit()
    assert rows(api) == 0


def test_changing_endpoints_share_the_transaction_of_their_audit_row() -> None:
    """An endpoint that opened its own transaction would leave no audit row."""
    changing = 0
    for file in sorted((Path(__file__).parents[2] / "service").glob("*/*.py")):
        text = file.read_text(encoding="utf-8")
        if "APIRouter(" not in text or file.parent.name == "worker_api":
            continue
        if file.parent.name == "login":
            continue  # it asks the provider between two transactions; `test_login` checks its audit row
        assert ".write()" not in text, file
        for function in ast.walk(ast.parse(text)):
            if not isinstance(function, ast.FunctionDef):
                continue
            verbs = {ast.unparse(call).partition("(")[0] for call in function.decorator_list}
            if not verbs & {f"router.{verb}" for verb in ("post", "put", "patch", "delete")}:
                continue
            annotations = {ast.unparse(a.annotation) for a in function.args.args if a.annotation}
            if function.name not in ("validate_job", "validate_experiment"):  # they store nothing
                assert "WriteSession" in annotations, f"{file}: {function.name}"
                changing += 1
    assert changing > 8


@pytest.mark.dialect
def test_audit_endpoint_pages_and_filters(api: Api) -> None:
    first, second = api.token("submit"), api.token("submit")
    api.dataset()
    for headers in (first, second, first):
        answer = api.client.post("/v1/jobs", json={"dataset": "emoji"}, headers=headers)
        assert answer.status_code == 201
    newest = audit_log(api)
    page = api.client.get("/v1/audit?limit=2", headers=api.token("admin")).json()
    assert (page["data"], page["has_more"]) == (newest[:2], True)
    rest = api.client.get(f"/v1/audit?after={page['next']}", headers=api.token("admin")).json()
    assert (rest["data"], rest["has_more"]) == (newest[2:], False)
    mine = audit_log(api, token=newest[0]["token_id"])
    assert [entry["id"] for entry in mine] == [newest[0]["id"], newest[2]["id"]]
    assert audit_log(api, since=newest[1]["at"]) == newest[:2]
    assert audit_log(api, since="2020-01-01") == newest
    assert audit_log(api, since="9999-12-31T00:00:00") == []
    admin = api.token("admin")
    for query in (
        "token=job_x",
        "token=%00",
        "since=yesterday",
        "since=9999-12-31T23:59:59-23:00",
        "since=1e400",
        "after=x",
        "after=" + newest[0]["token_id"],
    ):
        answer = api.client.get(f"/v1/audit?{query}", headers=admin)
        refused(answer, 422, query.partition("=")[0])


def test_audit_endpoint_shows_only_own_tenant(api: Api) -> None:
    api.dataset()
    api.submit()
    theirs = api.token("admin", tenant="other")
    assert api.client.get("/v1/audit", headers=theirs).json()["data"] == []
    entry = audit_log(api)[0]
    for query in (f"token={entry['token_id']}", f"after={entry['id']}"):
        assert api.client.get(f"/v1/audit?{query}", headers=theirs).json()["data"] == []


def test_forbidden_requests_are_rate_limited_per_token(api: Api) -> None:
    reader = api.token("read")
    limit = api.settings.auth_failures_per_minute
    for _ in range(limit):
        refused(api.client.post("/v1/tokens", json={}, headers=reader), 403)
    for _ in range(5):
        answer = api.client.get("/v1/audit", headers=reader)
        problem = refused(answer, 429, None, "too-many-failures")
        assert "with this token were refused for a missing scope; retry later" in problem["detail"]
        assert 0 < int(answer.headers["retry-after"]) <= 61
    assert len(audit_log(api)) == limit
    # The token's permitted requests, and other tokens, still work.
    assert api.client.get("/v1/jobs", headers=reader).status_code == 200
    refused(api.client.get("/v1/audit", headers=api.token("read")), 403)
