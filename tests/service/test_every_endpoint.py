"""Access control of every operation in the OpenAPI document."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from service import credentials
from service.server.app import create_app
from service.settings import Settings
from tests.support.api_under_test import Api, refused
from tests.support.every_operation import OPERATIONS, PARAMETERS, World, every_resource
from tests.support.runs import submission_id

ROOT = Path(__file__).parents[2]
LOGIN_OPERATIONS = {"POST /v1/login", "POST /v1/login/finish"}
# They need a token in the body or the session cookie: see `test_web_sessions.py`.
SESSION_OPERATIONS = {"POST /v1/session", "GET /v1/session", "DELETE /v1/session"}
PUBLIC = {"GET /livez", "GET /readyz", "GET /metrics"} | LOGIN_OPERATIONS | SESSION_OPERATIONS
USER_OPERATIONS = [op for op in OPERATIONS if " /v1/" in op and op not in PUBLIC]
WORKER_OPERATIONS = [operation for operation in OPERATIONS if " /worker/" in operation]


@pytest.fixture
def world(api: Api) -> Iterator[World]:
    with every_resource(api) as world:
        yield world


def test_openapi_declares_tokens_and_all_models() -> None:
    schema = create_app(Settings(home=Path("/nowhere"))).openapi()
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            if f"{method.upper()} {path}" in PUBLIC:
                assert operation["security"] == []
                continue
            scheme = "WorkerToken" if path.startswith("/worker/") else "HTTPBearer"
            assert operation["security"] == [{scheme: []}], f"{method} {path}"
            assert "4XX" in operation["responses"], f"{method} {path}"
    named = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(schema)))
    assert named <= schema["components"]["schemas"].keys()


def schemas_in(part: object) -> Iterator[dict[str, Any]]:
    """Yield all objects of the document, of which some are schemas."""
    if isinstance(part, dict):
        yield part
    if isinstance(part, dict | list):
        for below in part.values() if isinstance(part, dict) else part:
            yield from schemas_in(below)


def test_openapi_is_what_generators_of_clients_understand() -> None:
    """What redocly's `recommended` and `spectral:oas` called errors, and what generated clients did wrong."""
    document = create_app(Settings(home=Path("/nowhere"))).openapi()
    schemas = document["components"]["schemas"]
    assert document["servers"]
    assert len({name.lower() for name in schemas}) == len(schemas)
    for schema in schemas_in(document):
        assert schema.get("type") != "array" or "items" in schema, schema
        if "default" in schema and ("type" in schema or "anyOf" in schema or "$ref" in schema):
            validator = Draft202012Validator({**schema, "components": document["components"]})
            assert validator.is_valid(schema["default"]), schema
    bodies = [
        operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        for methods in document["paths"].values()
        for method, operation in methods.items()
        if method == "patch"
    ]
    assert len(bodies) >= 6
    for body in [*bodies, "ResourcesPatch"]:
        assert not schemas[body].get("required"), body
        for name, field in schemas[body]["properties"].items():
            assert "default" not in field, f"{body}.{name}: generated clients would send it"


def test_wrong_method_is_told_all_methods_of_the_path(world: World) -> None:
    methods: dict[str, set[str]] = {}
    for operation in OPERATIONS:
        method, path = operation.split()
        methods.setdefault(path, set()).add(method)
    for path, expected in methods.items():
        answer = world.send(f"PROPFIND {path}", None)
        assert answer.status_code == 405, path
        assert expected <= set(answer.headers["allow"].split(", ")), path


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


@pytest.mark.slow
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
