"""A client that openapi-python-client generates from `/openapi.json` submits, watches and downloads."""

import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from threading import Thread
from typing import Any

import httpx
import pytest

from service.client import Client
from tests.support.api_server import Service, running_service
from tests.support.short_training import FILES, SPEC, train

PACKAGE = "dasl_generated"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.fixture(scope="module")
def document(service: Service) -> dict[str, Any]:
    """The service's OpenAPI document."""
    answer = httpx.get(f"{service.url}/openapi.json", trust_env=False, timeout=60)
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


@pytest.fixture(scope="module")
def generated(
    document: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Any]]:
    """Import a module of the generated package by its name."""
    folder = tmp_path_factory.mktemp("generated")
    (folder / "openapi.json").write_text(json.dumps(document), encoding="utf-8")
    (folder / "config.yaml").write_text("post_hooks: []\n", encoding="utf-8")
    command = [sys.executable, "-m", "openapi_python_client", "generate", "--meta", "none"]
    command += ["--path", "openapi.json", "--config", "config.yaml", "--output-path", PACKAGE]
    ended = subprocess.run(
        [*command, "--fail-on-warning"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield lambda name: import_module(f"{PACKAGE}.{name}")
    for module in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[module]


@pytest.fixture
def connection(service: Service, generated: Callable[[str], Any]) -> Iterator[Any]:
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
    service: Service, generated: Callable[[str], Any], connection: Any, dataset: str
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
def test_specs_of_defaults_are_accepted(
    generated: Callable[[str], Any], connection: Any, dataset: str
) -> None:
    """The generated classes send every default, which must mean the same as leaving it out."""
    models, validate = generated("models"), generated("api.jobs.validate_job").sync
    short = validate(client=connection, body=models.JobSpec.from_dict({"dataset": "emoji"}))
    whole = validate(client=connection, body=models.JobSpec(dataset="emoji"))
    assert type(whole).__name__ == "ValidatedJob", whole
    assert whole.resolved.to_dict() == short.resolved.to_dict()


@pytest.mark.slow
def test_refusal_is_a_problem_document(generated: Callable[[str], Any], connection: Any) -> None:
    answer = generated("api.jobs.show_job").sync("job_" + "0" * 26, client=connection)
    assert type(answer).__name__ == "ProblemDocument"
    assert answer.status == 404
    assert answer.type_.endswith("not-found")


def test_operations_have_short_unique_names(document: dict[str, Any]) -> None:
    names = [
        operation["operationId"]
        for methods in document["paths"].values()
        for operation in methods.values()
    ]
    assert [name for name, number in Counter(names).items() if number > 1] == []
    assert [name for name in names if not re.fullmatch(r"[a-z]+(_[a-z]+){0,3}", name)] == []
