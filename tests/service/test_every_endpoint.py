"""Access control of every operation in the OpenAPI document."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service import credentials
from service.server.app import create_app
from service.settings import Settings
from service.tasks.repository import previews
from tests.support.api_under_test import Api, TaskRun, Worker, refused, snapshot
from tests.support.runs import submission_id

FILE: dict[str, Any] = {"name": "a", "size": 1, "sha256": "0" * 64}
PLACE: dict[str, Any] = {"step": 1, "epoch": 1}
ROOT = Path(__file__).parents[2]
# A valid body for each operation that needs one; all others get `{}`.
BODIES: dict[str, Any] = {
    "POST /v1/jobs": {"dataset": "emoji"},
    "POST /v1/jobs/validate": {"dataset": "emoji"},
    "POST /v1/datasets": {"name": "new", "uri": "/"},
    "POST /v1/datasets/{dataset_id}/previews": {"spec": {}},
    "POST /v1/datasets/{dataset_id}/preparations": {"spec": {}},
    "POST /v1/experiments": {"name": "new", "spec": {"dataset": "emoji"}, "variants": {"a": {}}},
    "POST /v1/checkpoints/{checkpoint_id}/evaluations": {"dataset": "emoji"},
    "POST /v1/checkpoints/{checkpoint_id}/embeddings": {"dataset": "emoji"},
    "POST /v1/checkpoints/{checkpoint_id}/exports": {"format": "onnx"},
    "POST /v1/tokens": {"name": "new", "scopes": ["read"]},
    "POST /v1/tenants": {"name": "new"},
    "POST /v1/users": {"name": "new"},
    "PATCH /v1/checkpoints/{checkpoint_id}": {"pinned": True},
    "POST /v1/webhooks": {"url": "https://hooks.example.org"},
    "PATCH /v1/webhooks/{webhook_id}": {"name": "chat"},
    "POST /v1/login": {"redirect_uri": "http://127.0.0.1:1/callback"},
    "POST /v1/login/finish": {"state": "x", "secret": "x", "code": "x"},
    "POST /v1/session": {"token": "dasl_x"},
    "POST /worker/v1/runs/{run_id}/metrics": {"points": []},
    "POST /worker/v1/runs/{run_id}/evaluations": PLACE | {"subject": "raw", "metrics": {}},
    "POST /worker/v1/runs/{run_id}/events": {"type": "note"},
    "POST /worker/v1/runs/{run_id}/damaged-checkpoint": {"checkpoint_id": "x", "damage": "x"},
    "POST /worker/v1/runs/{run_id}/checkpoints": PLACE | {"uri": "file:///x", "files": [FILE]},
    "POST /worker/v1/runs/{run_id}/artifacts": FILE | {"uri": "file:///x"},
    "POST /worker/v1/runs/{run_id}/finish": {"outcome": "succeeded"},
}
# Valid parameters of each operation that needs some.
PARAMETERS = {"GET /v1/metrics": {"job": "job_id", "name": "loss"}}
# Valid headers of each operation that needs some, for the body `{}`.
HEADERS = {"PUT /v1/datasets/{dataset_id}/content": {"Content-Range": "bytes 0-1/2"}}


def operations() -> list[str]:
    """Return `METHOD /path` of every operation in the document."""
    schema = create_app(Settings(home=Path("/nowhere"))).openapi()
    return [
        f"{method.upper()} {path}"
        for path, methods in schema["paths"].items()
        for method in methods
    ]


OPERATIONS = operations()
LOGIN_OPERATIONS = {"POST /v1/login", "POST /v1/login/finish"}
# They need a token in the body or the session cookie: see `test_web_sessions.py`.
SESSION_OPERATIONS = {"POST /v1/session", "GET /v1/session", "DELETE /v1/session"}
PUBLIC = {"GET /livez", "GET /readyz", "GET /metrics"} | LOGIN_OPERATIONS | SESSION_OPERATIONS
USER_OPERATIONS = [op for op in OPERATIONS if " /v1/" in op and op not in PUBLIC]
WORKER_OPERATIONS = [operation for operation in OPERATIONS if " /worker/" in operation]


@dataclass
class World:
    """An API in which one tenant has a resource of every kind."""

    api: Api
    worker: Worker
    ids: dict[str, str]

    def private_ids(self) -> list[str]:
        """Return the ids that no other tenant may see."""
        return [id for id in self.ids.values() if id.partition("_")[2].isalnum()]

    def send(self, operation: str, headers: dict[str, str] | None, **ids: str) -> Any:
        method, _, path = operation.partition(" ")
        body = BODIES.get(operation, {})
        headers = {**(headers or {}), **HEADERS.get(operation, {})}
        for name, value in (self.ids | ids).items():
            path = path.replace(f"{{{name}}}", value)
        assert "{" not in path, f"{path}: add the parameter to `ids`"
        known = self.ids | ids
        params = {
            key: known.get(value, value) for key, value in PARAMETERS.get(operation, {}).items()
        }
        return self.api.client.request(
            method,
            path,
            headers=headers,
            params=params,
            json=None if method in ("GET", "DELETE") else body,
        )


@pytest.fixture
def world(api: Api) -> Iterator[World]:
    # The tests fail to authenticate far more often than the rate limit allows.
    settings = api.settings.model_copy(update={"auth_failures_per_minute": 10_000})
    with TestClient(create_app(settings, api.database)) as api.client:
        api.client.headers.update(api.token("submit"))
        dataset = api.dataset()
        worker = api.running()
        files = [FILE | {"name": "model.json", "size": 2}]
        checkpoint = worker.post(
            "checkpoints", step=1, epoch=1, uri=f"{worker.uri}/checkpoints/1", files=files
        )
        assert checkpoint.status_code == 201, checkpoint.text
        answer = worker.post("artifacts", uri=f"{worker.uri}/model.json", **files[0])
        assert answer.status_code == 204, answer.text
        path = f"/v1/datasets/{dataset}/previews"
        preview = api.client.post(path, json={"spec": {}}).json()["id"]
        uri = f"{api.context.storage.preview_uri(preview)}/1"
        report = {"state": "succeeded", "uri": uri, "files": files}
        answer = TaskRun(api, preview, previews).post("finish", **report)
        assert answer.status_code == 204, answer.text
        path = f"/v1/datasets/{dataset}/preparations"
        preparation = api.client.post(path, json={"spec": {}}).json()["id"]
        body = BODIES["POST /v1/experiments"]
        experiment = api.client.post("/v1/experiments", json=body).json()["id"]
        checkpoint_id = checkpoint.json()["id"]
        path = f"/v1/checkpoints/{checkpoint_id}/exports"
        model_run = api.client.post(path, json={"format": "hf"}).json()["id"]
        uri = f"{api.context.storage.model_run_uri(model_run)}/1"
        ended: dict[str, Any] = {**report, "result": {}, "uri": uri}
        answer = TaskRun(api, model_run).post("finish", **ended)
        assert answer.status_code == 204, answer.text
        token = api.client.post(
            "/v1/tokens", json={"name": "token of the other tenant"}, headers=api.token("admin")
        )
        user = api.client.post("/v1/users", json={"name": "Ada"}, headers=api.token("admin"))
        webhook = api.client.post(
            "/v1/webhooks", json={"url": "https://hooks.example.org"}, headers=api.token("admin")
        ).json()["id"]
        delivery = api.client.post(f"/v1/webhooks/{webhook}/test", headers=api.token("admin"))
        ids = {
            "dataset_id": dataset,
            "preview_id": preview,
            "preparation_id": preparation,
            "job_id": worker.job_id,
            "experiment_id": experiment,
            "number": "1",
            "run_id": worker.run_id,
            "checkpoint_id": checkpoint_id,
            "model_run_id": model_run,
            "name": "model.json",
            "token_id": token.json()["id"],
            "user_id": user.json()["id"],
            "webhook_id": webhook,
            "delivery_id": delivery.json()["id"],
            "tenant": "default",
        }
        snapshot(api, cpus=4)
        del api.client.headers["authorization"]
        yield World(api, worker, ids)


def test_openapi_declares_tokens_and_all_models() -> None:
    schema = create_app(Settings(home=Path("/nowhere"))).openapi()
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            if f"{method.upper()} {path}" in PUBLIC:
                assert "security" not in operation
                continue
            scheme = "WorkerToken" if path.startswith("/worker/") else "HTTPBearer"
            assert operation["security"] == [{scheme: []}], f"{method} {path}"
            assert "4XX" in operation["responses"], f"{method} {path}"
    named = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(schema)))
    assert named <= schema["components"]["schemas"].keys()


def test_every_endpoint_rejects_missing_and_unknown_tokens(world: World) -> None:
    """Those of the session take the token from elsewhere, and reject also a worker's in the header."""
    text, _ = credentials.new_token()
    for operation in OPERATIONS:
        if operation in PUBLIC - SESSION_OPERATIONS:
            continue
        for token in (None, text, *[world.worker.token] * (operation in SESSION_OPERATIONS)):
            headers = None if token is None else {"Authorization": f"Bearer {token}"}
            answer = world.send(operation, headers)
            refused(answer, 401, None, "unauthenticated")
            assert answer.headers["www-authenticate"] == "Bearer"
            assert not any(id in answer.text for id in world.private_ids()), operation


def test_user_endpoints_reject_worker_tokens(world: World) -> None:
    for operation in USER_OPERATIONS:
        refused(world.send(operation, world.worker.headers), 401)


def test_worker_endpoints_reject_every_other_token(world: World) -> None:
    api = world.api
    spec = {"dataset": "emoji"}
    job = api.client.post("/v1/jobs", json=spec, headers=api.token("submit")).json()["id"]
    other = api.start(job).headers
    ingest = api.ingest(api.dataset("another", state="pending")).headers
    valid = world.worker.headers
    for operation in WORKER_OPERATIONS:
        for headers in (api.token("admin"), other, ingest):
            refused(world.send(operation, headers), 401)
        # The attempt's own token is not valid for another attempt or job.
        if "{number}" in operation:
            refused(world.send(operation, valid, number="2"), 401)
            refused(world.send(operation, valid, job_id=job), 401)
        if "{run_id}" in operation:
            refused(world.send(operation, valid, run_id=submission_id(api.database, job)), 401)


def test_other_tenants_resources_look_nonexistent(world: World) -> None:
    theirs = world.api.token("admin", tenant="other")
    kinds = {
        "job_id": "job",
        "dataset_id": "ds",
        "preview_id": "prev",
        "preparation_id": "prep",
        "experiment_id": "exp",
        "model_run_id": "mrun",
        "checkpoint_id": "ckpt",
        "token_id": "tok",
        "user_id": "usr",
        "webhook_id": "whk",
        "delivery_id": "msg",
    }
    nonexistent = {name: f"{kind}_{'0' * 26}" for name, kind in kinds.items()} | {"tenant": "none"}
    for operation in USER_OPERATIONS:
        if operation in OPERATOR_OPERATIONS:
            problems = [
                refused(world.send(operation, theirs, **ids), 403, None, "forbidden")
                for ids in ({}, nonexistent)
            ]
            assert problems[0]["detail"] == problems[1]["detail"], operation
        elif "{" in operation:
            problem = refused(world.send(operation, theirs), 404, None, "not-found")
            same = refused(world.send(operation, theirs, **nonexistent), 404, None, "not-found")
            assert problem.pop("request_id") != same.pop("request_id")
            for name, id in nonexistent.items():
                same["detail"] = same["detail"].replace(id, world.ids[name])
            assert problem == same, operation


def test_lists_show_nothing_of_other_tenants(world: World) -> None:
    theirs = world.api.token("admin", tenant="other")
    for operation in USER_OPERATIONS:
        if operation.startswith("GET ") and "{" not in operation:
            answer = world.send(operation, theirs)
            if operation in PARAMETERS:  # they name a job of the first tenant
                refused(answer, 404, None, "not-found")
                continue
            assert answer.status_code == 200, operation
            assert not [
                id
                for id in [*world.private_ids(), "token of the other tenant"]
                if id in answer.text
            ], operation


def documented_scopes() -> list[tuple[str, str]]:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `([A-Z]+ /[^`]*)` \| (\w+) \|", text, flags=re.M)


def test_endpoints_require_the_documented_scope(world: World) -> None:
    scopes = credentials.SCOPES
    headers = {scope: world.api.token(scope) for scope in scopes}
    for operation, needed in documented_scopes():
        if operation in SESSION_OPERATIONS:
            assert needed == "none"
            continue
        if needed == "none":
            # Without settings there is no login.
            statuses = (404,) if operation in LOGIN_OPERATIONS else (200, 503)
            assert world.send(operation, None).status_code in statuses, operation
            continue
        lowest = [str(scope) for scope in scopes].index(needed)
        for scope in scopes[:lowest]:
            problem = refused(world.send(operation, headers[scope]), 403, None, "forbidden")
            assert needed in problem["detail"]
        status = world.send(operation, headers[scopes[lowest]]).status_code
        assert status not in (401, 403), operation


OPERATOR_OPERATIONS = {operation for operation, scope in documented_scopes() if scope == "operator"}


def test_only_operators_may_name_another_tenant(world: World) -> None:
    operator = world.api.token("operator", tenant="operations")
    for operation, needed in documented_scopes():
        if needed == "none":
            continue
        for named in ("default", "nonexistent", "%00"):
            headers = world.api.token("admin", tenant="other") | {"DASL-Tenant": named}
            problem = refused(world.send(operation, headers), 403, None, "forbidden")
            detail = "The header DASL-Tenant needs the scope 'operator'; the token has: admin"
            assert problem["detail"] == detail
            if named != "default":
                answer = world.send(operation, operator | {"DASL-Tenant": named})
                refused(answer, 404, None, "not-found")
        answer = world.send(operation, operator | {"DASL-Tenant": "default"})
        assert answer.status_code not in (401, 403), operation
        assert '"not-found"' not in answer.text, operation


def test_every_user_endpoint_has_a_documented_scope() -> None:
    assert {operation for operation, _ in documented_scopes()} == {*OPERATIONS} - {
        *WORKER_OPERATIONS
    }
