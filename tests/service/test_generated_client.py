"""Clients that others' generators write from `/openapi.json`: every operation is called, and a job is trained with one.

openapi-python-client gives values that are not set no text at all; openapi-generator is what most other languages use.
"""

import inspect
import json
import re
import subprocess
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from io import BytesIO
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from service.client import Client
from service.server.app import create_app
from service.settings import Settings
from tests.support.api_server import Service, listening, running_service
from tests.support.api_under_test import Api
from tests.support.every_operation import BODIES, HEADERS, PARAMETERS, World, every_resource
from tests.support.short_training import FILES, SPEC, train

PACKAGE = "dasl_generated"
# openapi-python-client supports image/jpeg only with this setting.
CONFIG = "post_hooks: []\ncontent_type_overrides: {image/jpeg: application/octet-stream}\n"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return create_app(Settings(home=Path("/nowhere"))).openapi()


Load = Callable[[str], Any]
"""Import a module of a generated package by its name."""


@contextmanager
def generating(
    document: dict[str, Any], folder: Path, package: str, *command: str
) -> Iterator[Load]:
    (folder / "openapi.json").write_text(json.dumps(document), encoding="utf-8")
    (folder / "config.yaml").write_text(CONFIG, encoding="utf-8")
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield lambda name: import_module(f"{package}.{name}" if name else package)
    for module in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[module]


@pytest.fixture(scope="module")
def generated(document: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    command = [sys.executable, "-m", "openapi_python_client", "generate", "--meta", "none"]
    command += ["--path", "openapi.json", "--config", "config.yaml", "--output-path", PACKAGE]
    folder = tmp_path_factory.mktemp("generated")
    with generating(document, folder, PACKAGE, *command, "--fail-on-warning") as load:
        yield load


@pytest.fixture(scope="module")
def of_java(document: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    """The Python client of openapi-generator, which is written in Java."""
    program = Path(sysconfig.get_path("scripts")) / "openapi-generator-cli"
    command = [str(program), "generate", "-g", "python", "-i", "openapi.json", "-o", "."]
    command += ["--package-name", "dasl_of_java"]
    folder = tmp_path_factory.mktemp("of_java")
    with generating(document, folder, "dasl_of_java", *command) as load:
        yield load


@pytest.fixture
def world(api: Api) -> Iterator[World]:
    with every_resource(api) as world:
        yield world


@pytest.fixture
def connection(service: Service, generated: Load) -> Iterator[Any]:
    client = generated("client").AuthenticatedClient(
        base_url=service.url, token=service.token, raise_on_unexpected_status=True
    )
    with client:
        yield client


@pytest.fixture(scope="module")
def dataset(service: Service, tmp_path_factory: pytest.TempPathFactory) -> str:
    with Client(service.url, service.token) as client:
        added = client.datasets.add(tmp_path_factory.mktemp("emoji"), "emoji")
        service.ingest(added)
        return added.wait().id


@pytest.mark.slow
def test_generated_client_submits_watches_and_downloads(
    service: Service, generated: Load, connection: Any, dataset: str
) -> None:
    def call(operation: str, *args: Any, **kwargs: Any) -> Any:
        tag, name = operation.split(".")
        return generated(f"api.{tag}.{name}").sync(*args, client=connection, **kwargs)

    [found] = call("datasets.list_datasets", name="emoji").data
    assert (found.id, found.state) == (dataset, "ready")
    spec = generated("models").JobSpec.from_dict(SPEC)
    job = call("jobs.submit_job", body=spec, idempotency_key="once")
    assert call("jobs.submit_job", body=spec, idempotency_key="once").id == job.id
    assert (job.status, job.spec.to_dict()) == ("queued", SPEC)

    worker = service.start_attempt(job.id)
    final: list[str] = []

    def work() -> None:
        final.append(train(worker))
        worker.finish("succeeded")

    training = Thread(target=work)
    training.start()
    statuses, seen, deadline = [job.status], 0, time.monotonic() + 60
    types: list[str] = []
    while statuses[-1] != "succeeded":
        assert time.monotonic() < deadline
        status = call("jobs.show_job", job.id).status
        if status != statuses[-1]:
            statuses.append(status)
        for event in call("jobs.list_job_events", job.id, after=seen).data:
            types.append(event.type_)
            seen = event.seq
    training.join()
    assert statuses[:2] in (["queued", "starting"], ["queued", "running"], ["queued", "succeeded"])
    assert {"status", "checkpoint", "evaluation", "note"} <= set(types)

    metrics = call("jobs.show_job_metrics", job.id, name=["loss"])
    assert metrics.values.to_dict() == {"loss": [5.0, 4.0, 3.0]}
    [last] = [each for each in call("checkpoints.list_checkpoints", job.id).data if each.final]
    assert [last.id] == final
    for file in last.files:
        answer = call("checkpoints.download_checkpoint_file", last.id, file.name)
        assert answer.payload.read() == FILES[file.name]
    assert {file.name for file in last.files} == set(FILES)


@pytest.mark.slow
def test_specs_of_defaults_are_accepted(generated: Load, connection: Any, dataset: str) -> None:
    """The generated classes send every default, which must mean the same as leaving it out."""
    models, validate = generated("models"), generated("api.jobs.validate_job").sync
    short = validate(client=connection, body=models.JobSpec.from_dict({"dataset": "emoji"}))
    whole = validate(client=connection, body=models.JobSpec(dataset="emoji"))
    assert type(whole).__name__ == "ValidatedJob", whole
    assert whole.resolved.to_dict() == short.resolved.to_dict()


@pytest.mark.slow
def test_refusal_is_a_problem_document(generated: Load, connection: Any) -> None:
    answer = generated("api.jobs.show_job").sync("job_" + "0" * 26, client=connection)
    assert type(answer).__name__ == "ProblemDocument"
    assert answer.status == 404
    assert answer.type_.endswith("not-found")


def in_order(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """Return path, method and description of the people's operations: first those that read, last those that delete."""
    order = ["get", "put", "patch", "post", "delete"]
    return sorted(
        (
            (path, method, operation)
            for path, methods in document["paths"].items()
            for method, operation in methods.items()
            if operation["security"] and path.startswith("/v1/")
        ),
        key=lambda item: order.index(item[1]),
    )


def arguments_of(world: World, path: str, method: str, document: dict[str, Any]) -> dict[str, Any]:
    """Return the values of the parameters that an operation needs."""
    operation = f"{method.upper()} {path}"
    named = {name: world.ids[name] for name in re.findall(r"{(\w+)}", path)}
    query = {
        key: world.ids.get(value, value) for key, value in PARAMETERS.get(operation, {}).items()
    }
    headers = {
        key.lower().replace("-", "_"): value for key, value in HEADERS.get(operation, {}).items()
    }
    return named | {
        key: [value] if key in ("job", "name") else value
        for key, value in (query | headers).items()
    }


@pytest.mark.slow
def test_every_operation_is_called_by_openapi_python_client(
    world: World, generated: Load, document: dict[str, Any]
) -> None:
    """An answer that the document does not have is an error of the client."""
    token = world.api.token("operator")["Authorization"].removeprefix("Bearer ")
    client = generated("client").AuthenticatedClient(
        base_url=str(world.api.client.base_url), token=token, raise_on_unexpected_status=True
    )
    client.set_httpx_client(world.api.client)
    world.api.client.headers["authorization"] = f"Bearer {token}"
    for path, method, operation in in_order(document):
        call = generated(f"api.{snake(operation['tags'][0])}.{operation['operationId']}")
        arguments = arguments_of(world, path, method, operation)
        for kind, content in operation.get("requestBody", {}).get("content", {}).items():
            body: Any = generated("types").File(payload=BytesIO(b"x"))
            if kind == "application/json":
                model = getattr(generated("models"), model_of(content["schema"]))
                body = model.from_dict(BODIES.get(f"{method.upper()} {path}", {}))
            arguments["body"] = body
        answer = call.sync_detailed(client=client, **arguments)
        assert answer.status_code < 500, path
        assert answer.parsed is not None or answer.status_code == 204, (method, path)


@pytest.mark.slow
def test_every_operation_is_called_by_openapi_generator(
    world: World, of_java: Load, document: dict[str, Any]
) -> None:
    """What the document does not have, in a request or an answer, is an error that the client raises."""
    token = world.api.token("operator")["Authorization"].removeprefix("Bearer ")
    names = ("Forbidden", "NotFound", "Conflict", "UnprocessableEntity")
    refusals = [getattr(of_java("exceptions"), f"{name}Exception") for name in names]
    with listening(world.api.client.app) as (url, _):
        client = of_java("").ApiClient(of_java("").Configuration(host=url, access_token=token))
        for path, method, operation in in_order(document):
            tag = snake(operation["tags"][0])
            api = getattr(of_java("api"), f"{tag.title().replace('_', '')}Api")(client)
            call = getattr(api, operation["operationId"])
            arguments = arguments_of(world, path, method, operation)
            for kind, content in operation.get("requestBody", {}).get("content", {}).items():
                if kind == "application/json":
                    name = model_of(content["schema"])
                    body = getattr(of_java("models"), name).from_dict(
                        BODIES.get(f"{method.upper()} {path}", {})
                    )
                    parameters = inspect.signature(call).parameters.values()
                    taken = next(it.name for it in parameters if name in str(it.annotation))
                    arguments[taken] = body
                else:
                    arguments["body"] = b"x"
            with suppress(*refusals):
                call(**arguments)


@pytest.mark.slow
def test_change_of_one_field_sends_this_field(generated: Load, of_java: Load) -> None:
    """A client sends every default of the document, and would change other fields."""
    changes: dict[str, dict[str, Any]] = {
        "UserChanges": {"email": "ada@example.org"},
        "TenantChanges": {"disabled": True},
        "TokenChanges": {"max_gpus": 4},
        "JobPatch": {"priority": 5},
        "WebhookChanges": {"disabled": True},
        "CheckpointPatch": {"pinned": True},
    }
    for name, change in changes.items():
        assert getattr(generated("models"), name)(**change).to_dict() == change
        assert getattr(of_java("models"), name)(**change).to_dict() == change


def model_of(schema: dict[str, Any]) -> str:
    """Return the name of the model of a body, which may be left out."""
    names: list[str] = re.findall(r"#/components/schemas/(\w+)", json.dumps(schema))
    return names[0]


def snake(tag: str) -> str:
    return tag.replace(" ", "_")


def test_operations_have_short_unique_names(document: dict[str, Any]) -> None:
    names = [
        operation["operationId"]
        for methods in document["paths"].values()
        for operation in methods.values()
    ]
    assert [name for name, number in Counter(names).items() if number > 1] == []
    assert [name for name in names if not re.fullmatch(r"[a-z]+(_[a-z]+){0,3}", name)] == []
