"""No secret appears in logs, files, database rows, responses or the OpenAPI document."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import MetaData, select, text
from sqlalchemy.exc import OperationalError

from service import lifecycle
from service.jobs import submission
from service.log_records import JsonLines, TextLines
from service.server.app import create_app
from service.settings import Settings
from tests.support.api_under_test import Api

PASSWORD, RAY_TOKEN, METRICS_TOKEN = "hunter2-database", "hunter2-ray", "hunter2-metrics"
# Loggers of the test client, not of the service.
TEST_CLIENT_LOGGERS = ("httpx", "httpcore", "asyncio")


def service_records(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return the captured records of the service's own loggers."""
    return [r for r in caplog.records if not r.name.startswith(TEST_CLIENT_LOGGERS)]


@dataclass
class Watched:
    """An API whose responses are recorded."""

    api: Api
    secrets: dict[str, str] = field(default_factory=dict)
    answers: list[str] = field(default_factory=list)

    def send(self, method: str, path: str, token: str | None, **options: Any) -> Any:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        answer = self.api.client.request(method, path, headers=headers, **options)
        self.answers.append(f"{answer.headers} {answer.text}")
        return answer

    def everything(self, caplog: pytest.LogCaptureFixture) -> Iterator[tuple[str, str]]:
        """Yield (location, text) for everything that others could read."""
        records = service_records(caplog)
        for style in (TextLines(), JsonLines()):
            yield "a log", "\n".join(map(style.format, records))
        yield "raw records", "\n".join(map(logging.Formatter().format, records))
        for number, answer in enumerate(self.answers):
            yield f"answer {number}", answer
        for file in self.api.settings.home.rglob("*"):
            if file.is_file():
                yield str(file), file.read_bytes().decode("latin-1")
        tables = MetaData()
        with self.api.database.engine.connect() as connection:
            tables.reflect(connection)
            for table in tables.sorted_tables:
                for row in connection.execute(select(table)):
                    yield f"the table {table.name}", str(row)


@pytest.fixture
def watched(api: Api) -> Iterator[Watched]:
    settings = Settings(
        home=api.settings.home,
        database_url=f"postgresql+psycopg://dasl:{PASSWORD}@db/dasl",
        ray_auth_token=RAY_TOKEN,
        metrics_token=METRICS_TOKEN,
    )
    app = create_app(settings, api.database)
    with TestClient(app, raise_server_exceptions=False) as client:
        api.client = client
        watched = Watched(api)
        watched.secrets = {
            "the database's password": PASSWORD,
            "Ray's token": RAY_TOKEN,
            "the token of the metrics": METRICS_TOKEN,
            **{
                f"the {scope} token": api.token(scope)["Authorization"].removeprefix("Bearer ")
                for scope in ("read", "submit", "admin")
            },
        }
        yield watched


def test_secrets_appear_in_no_log_file_row_or_response(
    watched: Watched, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    api, secrets = watched.api, watched.secrets
    reader, submitter, admin = (
        secrets[f"the {scope} token"] for scope in ("read", "submit", "admin")
    )
    api.dataset()
    pending = api.dataset("more", state="pending")

    # A job is submitted, runs, reports, fails, runs again and is cancelled.
    job = watched.send("POST", "/v1/jobs", submitter, json={"dataset": "emoji"}).json()["id"]
    worker = api.start(job)
    secrets["the worker's token"] = worker.token
    endpoint = f"/worker/v1/runs/{worker.run_id}"
    error = {"type": "OSError", "message": "no space", "traceback": "Traceback ..."}
    for action, body in (
        ("start", {}),
        ("heartbeat", {"progress": {"step": 1}}),
        ("events", {"type": "note", "message": "hello"}),
        ("metrics", {"points": [{"step": 1, "time": 1.0, "values": {"loss": 1.0}}]}),
        ("artifacts", {"name": "../x"}),
        ("finish", {"outcome": "failed", "error": error}),
        ("heartbeat", {}),
    ):
        watched.send("POST", f"{endpoint}/{action}", worker.token, json=body)
    with api.database.write() as session:
        lifecycle.requeue(session, job)
    again = api.start(job)
    secrets["the second worker's token"] = again.token
    watched.send("POST", f"/worker/v1/runs/{again.run_id}/start", worker.token)
    watched.send("POST", f"/v1/jobs/{job}/cancel", submitter)
    ingest = api.ingest(pending)
    secrets["the ingest's token"] = ingest.token
    watched.send("POST", f"/worker/v1/runs/{ingest.run_id}/start", ingest.token)

    # A new token is shown only in the response that creates it.
    created = watched.send("POST", "/v1/tokens", admin, json={"name": "new"}).json()
    secrets["the new token"] = created["token"]
    assert created["token"] in watched.answers.pop()

    # Everything that can be read.
    for path in (
        *("/v1/jobs", f"/v1/jobs/{job}", f"/v1/jobs/{job}/events", f"/v1/jobs/{job}/attempts"),
        *(f"/v1/jobs/{job}/logs", "/v1/datasets", "/v1/tokens", "/v1/audit", "/v1/cluster"),
        *("/openapi.json", "/docs", "/livez", "/readyz", "/metrics"),
    ):
        watched.send("GET", path, admin)
    watched.send("GET", "/metrics", METRICS_TOKEN)

    # Refused requests, and tokens in the wrong places.
    watched.send("POST", "/v1/tokens", reader, json={"name": "x"})
    watched.send("GET", f"/v1/tokens/{submitter}", reader)
    watched.send("DELETE", f"/v1/tokens/{reader}?token={reader}", reader)
    watched.send("GET", "/v1/jobs", submitter[:-1])

    # Failures of the service and of the database.
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(submission, "submit", broken)
    answer = watched.send("POST", "/v1/jobs", submitter, json={"dataset": "emoji"})
    assert answer.status_code == 500
    assert "a defect" not in answer.text

    def away(*_: object, **__: object) -> None:
        raise OperationalError("SELECT 1", {}, RuntimeError(f"password={PASSWORD} refused"))

    monkeypatch.setattr(submission, "submit", away)
    answer = watched.send("POST", "/v1/jobs", submitter, json={"dataset": "emoji"})
    assert answer.status_code == 503
    with api.database.write() as session:
        session.execute(text("DROP TABLE idempotency_keys"))

    leaks = {
        (name, location)
        for location, content in watched.everything(caplog)
        for name, secret in secrets.items()
        if secret in content
    }
    # The database's raw error message contains it; the formatted log lines do not.
    assert leaks == {("the database's password", "raw records")}


def test_sql_errors_show_no_parameter_values(watched: Watched) -> None:
    with watched.api.database.engine.connect() as connection:
        statement = text("SELECT :secret FROM nowhere")
        with pytest.raises(Exception, match="nowhere") as failed:
            connection.execute(statement, {"secret": "hunter2"})
    assert "hunter2" not in str(failed.value)


@pytest.mark.parametrize("style", [TextLines, JsonLines])
def test_request_urls_cannot_forge_log_records(
    watched: Watched, caplog: pytest.LogCaptureFixture, style: type[logging.Formatter]
) -> None:
    caplog.set_level(logging.INFO)
    reader = watched.secrets["the read token"]
    for part in ("job_x%0a2026-01-01 ERROR forged", "%1b[2J", "job_x%0d%0aforged"):
        watched.send("GET", f"/v1/jobs/{part}", reader)
        for _ in range(20):  # until the address is rate-limited, which logs a warning
            watched.send("GET", f"/v1/jobs/{part}", None)
    records = service_records(caplog)
    assert any(record.levelno == logging.WARNING for record in records)
    for record in records:
        line = style().format(record)
        assert "\n" not in line
        assert "\x1b" not in line
