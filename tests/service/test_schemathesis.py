"""Schemathesis over the whole OpenAPI document, with a valid token: no 5xx, no undocumented answer.

Every operation gets its own resources, so that one operation (revoke, delete, finish) does not turn
the requests of another into 404s.
"""

import shutil
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from starlette.types import ASGIApp, Receive, Scope, Send

from service.db.models import ClusterSnapshot, Lease
from service.db.session import Database
from service.scheduling.dispatcher_report import DispatcherReport
from service.server.app import create_app
from service.settings import Settings
from service.tenants import service as tenants
from tests.support.api_under_test import Api, Worker, snapshot

# The schema of a spec alone leads to two thousand requests.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("schemathesis"), pytest.mark.timeout(900)]

EXAMPLES = 10
# Random requests cannot succeed here: they would need an existing folder, a file in the attempt's
# folder, or a paused job.
NEVER_SUCCEED = {
    "POST /v1/datasets",
    # It has no upload, and the body's length is not that of the range.
    "PUT /v1/datasets/{dataset_id}/content",
    # No data set was ingested with one.
    "GET /v1/datasets/{dataset_id}/contact-sheet",
    # There is no login provider.
    "POST /v1/login",
    "POST /v1/login/finish",
    # No token or code of a request is valid, and none has a session's cookie.
    "POST /v1/session",
    "GET /v1/session",
    "DELETE /v1/session",
    "POST /v1/jobs/{job_id}/resume",
    # Nothing of a job that runs is about to be removed.
    "POST /v1/jobs/{job_id}/undelete",
    # Ten random bodies are few for the reports of all kinds of runs; those of attempts are sent.
    "POST /worker/v1/runs/{run_id}/finish",
    # A preview that is not drawn has no files.
    "GET /v1/previews/{preview_id}/files/{name}",
    "POST /worker/v1/runs/{run_id}/artifacts",
    "POST /worker/v1/runs/{run_id}/checkpoints",
    # The newest checkpoint of a running job cannot be deleted.
    "DELETE /v1/checkpoints/{checkpoint_id}",
    # Nor can the job, which never ends here.
    "DELETE /v1/jobs/{job_id}",
    "DELETE /v1/jobs/{job_id}/checkpoints",
    # No random text names a job or a data set, or is the address of a public server.
    "GET /v1/metrics",
    "POST /v1/checkpoints/{checkpoint_id}/embeddings",
    "POST /v1/checkpoints/{checkpoint_id}/evaluations",
    "POST /v1/experiments",
    "POST /v1/experiments/validate",
    "POST /v1/webhooks",
    # There is no embedding, no export has files yet, and an attempt answers no questions.
    "GET /v1/checkpoints/{checkpoint_id}/neighbors",
    "POST /v1/checkpoints/{checkpoint_id}/neighbors",
    "GET /v1/model-runs/{model_run_id}/files/{name}",
    "POST /worker/v1/runs/{run_id}/queries",
}
# `POST /v1/jobs` validates a job first.
SAME_BODY = r"^/v1/jobs/validate$"
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    unsupported_method,
]


@dataclass
class World:
    """An API with data, and for each operation the ids and the token that it needs."""

    api: Api
    of_operation: dict[str, tuple[dict[str, str], dict[str, str]]] = field(default_factory=dict)
    statuses: dict[str, Counter[int]] = field(default_factory=dict)
    """How often each operation answered with each status."""

    def resources(self, operation: str) -> tuple[dict[str, str], dict[str, str]]:
        """Return the path parameters and headers of an operation."""
        if operation not in self.of_operation:
            self.of_operation[operation] = self._make(operation, len(self.of_operation))
        return self.of_operation[operation]

    def _make(self, operation: str, number: int) -> tuple[dict[str, str], dict[str, str]]:
        api, headers = self.api, self.api.token("operator")
        dataset = api.dataset(f"images {number}")
        worker = api.start(api.submit()["id"])
        checkpoint = _report(worker)
        if "/worker/" in operation:
            headers = worker.headers
        token = api.client.post("/v1/tokens", json={"name": "x"}).json()["id"]
        user = api.client.post("/v1/users", json={"name": "x"}).json()["id"]
        tenant = f"tenant-{number}"
        with api.database.write() as session:
            tenants.ensure(session, tenant)
        ids = {
            "dataset_id": dataset,
            "job_id": worker.job_id,
            "number": "1",
            "run_id": worker.run_id,
            "checkpoint_id": checkpoint,
            "token_id": token,
            "user_id": user,
            "tenant": tenant,
            "name": "model.json",
        }
        if "{preview_id}" in operation:  # a token may have few of them
            answer = api.client.post(f"/v1/datasets/{dataset}/previews", json={"spec": {}})
            ids["preview_id"] = answer.json()["id"]
        if "{preparation_id}" in operation:
            answer = api.client.post(f"/v1/datasets/{dataset}/preparations", json={"spec": {}})
            ids["preparation_id"] = answer.json()["id"]
        if "{experiment_id}" in operation:
            body = {"name": "x", "spec": {"dataset": "emoji"}, "variants": {"a": {}, "b": {}}}
            ids["experiment_id"] = api.client.post("/v1/experiments", json=body).json()["id"]
        if "{model_run_id}" in operation:
            path = f"/v1/checkpoints/{checkpoint}/exports"
            ids["model_run_id"] = api.client.post(path, json={"format": "hf"}).json()["id"]
        if "{webhook_id}" in operation:  # a tenant may have few of them
            headers = api.token("admin", tenant=tenant)
            body = {"url": "https://hooks.example.org"}
            webhook = api.client.post("/v1/webhooks", json=body, headers=headers).json()["id"]
            sent = api.client.post(f"/v1/webhooks/{webhook}/test", headers=headers)
            ids |= {"webhook_id": webhook, "delivery_id": sent.json()["id"]}
        return ids, headers


def _report(worker: Worker) -> str:
    """Send one report of each kind and return the checkpoint's id."""
    assert worker.post("start").status_code == 200
    file = Path(worker.uri.removeprefix("file://")) / "checkpoints" / "model.json"
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    entry = {"name": file.name, "size": 2, "sha256": "0" * 64}
    point = {"step": 1, "time": 1.0, "values": {"loss": 0.5}}
    reports: dict[str, dict[str, Any]] = {
        "metrics": {"points": [point]},
        "evaluations": {"step": 1, "epoch": 1, "subject": "raw", "metrics": {"knn": 0.5}},
        "artifacts": {"uri": f"{worker.uri}/checkpoints/model.json", **entry},
    }
    for action, body in reports.items():
        assert worker.post(action, **body).is_success
    answer = worker.post(
        "checkpoints", step=1, epoch=1, uri=f"{worker.uri}/checkpoints", files=[entry]
    )
    assert answer.is_success, answer.text
    return str(answer.json()["id"])


class DeferredApp:
    """An ASGI app whose API is set by a fixture; tests are collected from a placeholder's document."""

    def __init__(self) -> None:
        self.app: ASGIApp = create_app(Settings(home=Path("/nowhere")))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


deferred = DeferredApp()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: Path) -> Iterator[World]:
    home = tmp_path_factory.mktemp("fuzzed")
    shutil.copy(migrated_sqlite, home / "dasl.db")
    database = Database(f"sqlite:///{home / 'dasl.db'}")
    api_settings = Settings(home=home, auth_failures_per_minute=10**9)
    app = create_app(api_settings, database)
    with TestClient(app, raise_server_exceptions=False) as client:
        api = Api(client, database, api_settings, app.state.context)
        client.headers.update(api.token("admin"))
        api.dataset()
        snapshot(api, cpus=1000)
        with database.write() as session:
            # Neither expires while the tests run.
            later = datetime.now(UTC) + timedelta(days=1)
            seen = session.get_one(ClusterSnapshot, 1)
            seen.at = later
            seen.dispatcher = DispatcherReport(started_at=later).model_dump(mode="json")
            session.add(Lease(name="dispatcher", holder="me", expires_at=later))
        # End streams immediately, because the jobs never end.
        api.context.closing.set()
        deferred.app = app
        world = World(api)
        yield world
        refused = {
            operation
            for operation, statuses in world.statuses.items()
            if not any(status < 300 for status in statuses)
        }
        assert sorted(refused - NEVER_SUCCEED) == [], "no request to these succeeded"
    database.dispose()


def _document() -> Any:
    generation = {
        "max-examples": EXAMPLES,
        "deterministic": True,
        "with-security-parameters": False,
    }
    # Requests that cover the whole schema of a body are sent once: to the operation whose code includes
    # that of the other one.
    same_body = {"include-path-regex": SAME_BODY, "phases": {"coverage": {"enabled": False}}}
    config = SchemathesisConfig.from_dict(
        {"seed": 0, "generation": generation, "operations": [same_body]}
    )
    return schemathesis.openapi.from_asgi("/openapi.json", deferred, config=config)


document = _document()


@document.parametrize()  # type: ignore[untyped-decorator]  # by the document, which is Any
@settings(
    max_examples=EXAMPLES, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck)
)
def test_api_answers_are_documented_and_never_server_errors(case: Any, world: World) -> None:
    if case.operation.label == "POST /v1/jobs" and _number(case.body) % 3 != 1:
        return  # All three thousand bodies take half a minute; there are about nine for each field.
    ids, headers = world.resources(case.operation.label)
    parameters = dict(case.path_parameters or {})
    # Three of four requests use existing resources.
    if _number(sorted(parameters.items())) % 4:
        case.path_parameters = {name: ids[name] for name in parameters}
    if case.operation.path in ("/v1/jobs", "/v1/jobs/validate") and isinstance(case.body, dict):
        case.body = case.body | {"dataset": "emoji"}
    answer = case.call_and_validate(headers=headers, checks=CHECKS)
    world.statuses.setdefault(case.operation.label, Counter())[answer.status_code] += 1


def _number(value: Any) -> int:
    """Return a number that depends only on a value, to choose some of many."""
    return zlib.crc32(repr(value).encode("utf-8", "backslashreplace"))
