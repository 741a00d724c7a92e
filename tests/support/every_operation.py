"""Every operation of the API's document, with a valid request, and a resource of every kind."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from service.server.app import create_app
from service.settings import Settings
from service.tasks.repository import previews
from tests.support.api_under_test import Api, TaskRun, Worker, snapshot

FILE: dict[str, Any] = {"name": "a", "size": 1, "sha256": "0" * 64}
PLACE: dict[str, Any] = {"step": 1, "epoch": 1}
EXPERIMENT = {"name": "new", "spec": {"dataset": "emoji"}, "variants": {"a": {}}}
# A valid body for each operation that needs one; all others get `{}`.
BODIES: dict[str, Any] = {
    "POST /v1/jobs": {"dataset": "emoji"},
    "POST /v1/jobs/validate": {"dataset": "emoji"},
    "POST /v1/datasets": {"name": "new", "uri": "/"},
    "POST /v1/datasets/{dataset_id}/previews": {"spec": {}},
    "POST /v1/datasets/{dataset_id}/preparations": {"spec": {}},
    "POST /v1/experiments": EXPERIMENT,
    "POST /v1/experiments/validate": EXPERIMENT,
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


@contextmanager
def every_resource(api: Api) -> Iterator[World]:
    """Make a resource of every kind."""
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
