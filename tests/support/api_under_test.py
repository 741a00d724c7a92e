"""An API under test, with helpers for the actions of users, the dispatcher and workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from fastapi.testclient import TestClient

from service import credentials, ids, lifecycle
from service.api.transaction import Context
from service.datasets.ingests import repository as ingests
from service.db.models import ClusterSnapshot, Dataset, DatasetVersion
from service.db.session import Database
from service.scheduling import packing
from service.scheduling import repository as scheduling
from service.scheduling.dispatcher_report import DispatcherReport
from service.scheduling.nodes import Node
from service.server.app import create_app
from service.settings import Settings
from service.tasks.repository import Tasks, model_runs
from service.tokens import service as tokens
from service.tokens.schemas import Quotas
from tests.support.decisions import store_decisions
from tests.support.runs import submission_id

FACTS = {"num_images": 100, "num_classes": 4, "median_size": 32}
PROBLEM = "application/problem+json"


@dataclass
class Api:
    """A running API with helpers that create tokens, datasets, jobs and attempts."""

    client: TestClient
    database: Database
    settings: Settings
    context: Context

    def token(
        self, *scopes: credentials.Scope, tenant: str = "default", **quotas: int
    ) -> dict[str, str]:
        """Create a token and return its request headers."""
        limits = Quotas.model_validate(quotas)
        with self.database.write() as session:
            _, token = tokens.create(
                session, tenant=tenant, name="test", scopes=scopes, quotas=limits
            )
        return {"Authorization": f"Bearer {token}"}

    def dataset(
        self, name: str = "emoji", state: str = "ready", tenant: str = "default", **facts: Any
    ) -> str:
        """Insert a dataset in the given state and return its id."""
        dataset_id = ids.new_id("ds")
        ready = state == "ready"
        folder = self.settings.home.parent / "images" / name
        folder.mkdir(parents=True, exist_ok=True)
        now = datetime.now(UTC)
        row = Dataset(
            id=dataset_id,
            tenant=tenant,
            name=name,
            uri=str(folder),
            state=state,
            facts={**FACTS, **facts} if ready else None,
            index_uri=f"{self.context.storage.dataset_uri(dataset_id)}/index.safetensors"
            if ready
            else None,
            error={"type": "empty", "message": "no images"} if state == "failed" else None,
            created_at=now,
            ingest_requested_at=now,
        )
        with self.database.write() as session:
            session.add(row)
            session.flush()
            if ready:
                session.add(current_version(row))
        return dataset_id

    def submit(self, **spec: Any) -> dict[str, Any]:
        """Submit a job on the dataset `emoji` and return it."""
        answer = self.client.post("/v1/jobs", json={"dataset": "emoji", **spec})
        assert answer.status_code == 201, answer.text
        job: dict[str, Any] = answer.json()
        return job

    def start(
        self, job_id: str, avoided: Sequence[str] = (), numbers: packing.Worker | None = None
    ) -> Worker:
        """Start the next attempt, as the dispatcher does."""
        token, hashed = credentials.new_token()
        with self.database.write() as session:
            attempt = lifecycle.start_attempt(
                session, job_id, hashed, avoided=avoided, worker=numbers
            )
            assert attempt is not None
            number = attempt.number
        return Worker(self, job_id, number, token)

    def run(self, job_id: str, numbers: packing.Worker | None = None) -> Worker:
        """Start the next attempt, and let its worker report that it runs."""
        worker = self.start(job_id, numbers=numbers)
        answer = worker.post("start")
        assert answer.is_success, answer.text
        return worker

    def running(self, **spec: Any) -> Worker:
        """Submit a job on the dataset `emoji`, which is inserted if it is missing, and let its attempt begin."""
        if not self.client.get("/v1/datasets", params={"name": "emoji"}).json()["data"]:
            self.dataset()
        return self.run(self.submit(**spec)["id"])

    def ingest(self, dataset_id: str) -> Worker:
        """Start the next ingest run of a data set, as the dispatcher does."""
        token, hashed = credentials.new_token()
        with self.database.write() as session:
            run = ingests.begin_ingest(session, dataset_id, hashed)
            assert run is not None
        return Worker(self, dataset_id, run.number, token)


@contextmanager
def served(settings: Settings, database: Database) -> Iterator[Api]:
    """An API on a database, with a client whose token has the scope `submit`."""
    app = create_app(settings, database)
    with TestClient(app) as client:
        api = Api(client, database, settings, app.state.context)
        client.headers.update(api.token("submit"))
        yield api


def check_references(api: Api, path: str, birds: dict[str, Any], cats: dict[str, Any]) -> None:
    """Check that two rows with these names are found by id, name, beginning of the id, and `last`."""
    own = next(n for n in range(5, 31) if birds["id"][:n] != cats["id"][:n])
    for reference, row in (
        (birds["id"], birds),
        ("birds", birds),
        (birds["id"][:own], birds),
        (birds["id"][4:own], birds),
        ("cats", cats),
        ("last", cats),
    ):
        answer = api.client.get(f"{path}/{reference}")
        assert (answer.status_code, answer.json()["id"]) == (200, row["id"]), reference


class TaskRun:
    """The run of a task, by default of a finished model, started as the dispatcher does."""

    def __init__(self, api: Api, task_id: str, tasks: Tasks[Any] = model_runs) -> None:
        self.api = api
        token, hashed = credentials.new_token()
        self.headers = {"Authorization": f"Bearer {token}"}
        with api.database.write() as session:
            run = tasks.begin(session, task_id, hashed)
            assert run is not None
            self.path = f"/worker/v1/runs/{run.submission_id}"

    def post(self, action: str, **body: Any) -> Any:
        return self.api.client.post(f"{self.path}/{action}", json=body, headers=self.headers)


@dataclass
class Worker:
    """The worker of one attempt of a job, or of one ingest run of a data set."""

    api: Api
    job_id: str
    number: int
    token: str

    @property
    def run_id(self) -> str:
        """Submission id of the run."""
        return submission_id(self.api.database, self.job_id, self.number)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    @property
    def uri(self) -> str:
        """URI of the attempt's output folder."""
        return self.api.context.storage.attempt_uri(self.job_id, self.number)

    @property
    def path(self) -> str:
        """Path of the run's endpoints below `/worker/v1`."""
        return f"runs/{self.run_id}"

    def post(self, action: str, **body: Any) -> Any:
        """POST to an endpoint of the worker API."""
        path = f"/worker/v1/{self.path}/{action}"
        return self.api.client.post(path, json=body, headers=self.headers)


def current_version(dataset: Dataset) -> DatasetVersion:
    """Return the version of a data set that is ready, which its ingest would have added."""
    return DatasetVersion(
        dataset_id=dataset.id,
        number=dataset.version,
        index_uri=dataset.index_uri,
        facts=dataset.facts,
        created_at=dataset.created_at,
    )


def snapshot(
    api: Api, cpus: float, gpus: float = 0, others: Sequence[tuple[float, float]] = ()
) -> None:
    """Save a cluster snapshot of one node, and of `others` with (CPUs, GPUs) each."""
    sizes = [(cpus, gpus), *others]
    save_nodes(
        api, [Node(f"n{number}", "127.0.0.1", *size, 0, 0) for number, size in enumerate(sizes, 1)]
    )


def save_nodes(api: Api, nodes: Sequence[Node]) -> None:
    """Save a cluster snapshot of these nodes, with one CPU in use."""
    with api.database.write() as session:
        saved = ClusterSnapshot(
            at=datetime.now(UTC),
            alive=True,
            nodes=[scheduling.stored_node(node) for node in nodes],
            dispatcher=DispatcherReport(started_at=datetime.now(UTC)).model_dump(mode="json"),
            total_cpus=sum(node.total_cpus for node in nodes),
            total_gpus=sum(node.total_gpus for node in nodes),
            used_cpus=1,
            used_gpus=0,
        )
        scheduling.save_snapshot(session, saved)


def decide(api: Api) -> None:
    """Store the dispatcher's decisions on the queue, by the last snapshot; nothing starts."""
    store_decisions(api.database)


def refused(answer: Any, status: int, field: str | None = None, type: str | None = None) -> Any:
    """Check that a response is a problem document with this status, field and type; return it."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == PROBLEM
    problem = answer.json()
    assert problem["status"] == status
    if field is not None:
        assert field in [error["field"] for error in problem["errors"]], problem
    if type is not None:
        assert problem["type"] == type
    return problem
