"""Rate limit of failed authentication per client address."""

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from service.api.auth_rate_limit import FailedAuthLimit, Failures
from service.db.session import Database
from service.server.thread import ApiThread
from service.settings import Settings
from service.tokens import service as tokens
from tests.support.api_under_test import Api, refused

BAD = {"Authorization": "Bearer dasl_wrong"}


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def test_failure_window_slides_per_address() -> None:
    clock = Clock()
    failures = Failures(3, clock)
    assert [failures.count("a") for _ in range(2)] == [None, None]
    clock.now += 20
    assert failures.count("a") is None
    assert failures.count("a") == 40, "seconds until the first two are a minute old"
    assert failures.count("b") is None
    clock.now += 40
    assert [failures.count("a") for _ in range(2)] == [None, None]
    # Refused attempts do not extend the wait.
    assert failures.count("a") == 20
    clock.now += 60
    assert failures.count("a") is None


def test_failure_warning_is_logged_once_per_episode(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    failures = Failures(3, clock)
    for _ in range(600):
        failures.count("a")
        clock.now += 1
    assert len(caplog.records) == 1
    clock.now += 60
    for _ in range(5):
        failures.count("a")
    assert len(caplog.records) == 2


def test_failures_remember_limited_number_of_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.api.auth_rate_limit._MAX_ADDRESSES", 2)
    failures = Failures(1, Clock())
    for address in ("a", "b", "a", "c"):
        failures.count(address)
    assert set(failures._times) == {"a", "c"}, "b failed longest ago"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def client(api: Api, clock: Clock) -> Iterator[TestClient]:
    """A client without a token, behind a limit of 3 failures and the fake clock."""
    with TestClient(FailedAuthLimit(api.client.app, Failures(3, clock))) as client:
        yield client


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/jobs"),
        ("POST", "/v1/tokens"),
        ("POST", "/worker/v1/runs/job_x-1/heartbeat"),
        ("POST", "/worker/v1/runs/ds_x-1/start"),
    ],
)
def test_auth_rate_limit_applies_to_every_endpoint(
    api: Api, client: TestClient, clock: Clock, method: str, path: str
) -> None:
    body: dict[str, Any] = {"progress": {}} if path.endswith("heartbeat") else {"name": "x"}
    options: dict[str, Any] = {} if method == "GET" or path.endswith("start") else {"json": body}
    for headers in ({}, BAD, BAD):
        refused(client.request(method, path, headers=headers, **options), 401)
    answer = client.request(method, path, headers=BAD, **options)
    refused(answer, 429, None, "too-many-failures")
    assert answer.headers["retry-after"] == "61"
    # A valid token still works from the same address.
    assert client.get("/v1/jobs", headers=api.token("read")).status_code == 200
    # An endpoint without authentication still works.
    assert client.get("/livez").status_code == 200
    clock.now += 30
    assert client.request(method, path, headers=BAD, **options).headers["retry-after"] == "31"
    clock.now += 31
    refused(client.request(method, path, headers=BAD, **options), 401)


def test_auth_rate_limit_leaves_other_addresses_alone(api: Api, clock: Clock) -> None:
    app = FailedAuthLimit(api.client.app, Failures(1, clock))
    first, second = (TestClient(app, client=(ip, 5000)) for ip in ("10.0.0.1", "10.0.0.2"))
    assert [first.get("/v1/jobs").status_code for _ in range(2)] == [401, 429]
    assert second.get("/v1/jobs").status_code == 401


@pytest.mark.parametrize(("trusted", "status"), [("", 429), ("10.0.0.0/8, 127.0.0.1", 401)])
def test_forwarded_address_is_used_only_from_trusted_proxies(
    tmp_path: Path, migrated_sqlite: Path, trusted: str, status: int
) -> None:
    """Over a real connection, because uvicorn must not trust the header either."""
    url = f"sqlite:///{tmp_path / 'dasl.db'}"
    (tmp_path / "dasl.db").write_bytes(migrated_sqlite.read_bytes())
    settings = Settings(
        home=tmp_path, database_url=url, auth_failures_per_minute=2, trusted_proxies=trusted
    )
    database = Database(url)
    with database.write() as session:
        _, token = tokens.create(session, tenant="t", name="admin", scopes=["admin"])
    listener = socket.create_server(("127.0.0.1", 0))
    thread = ApiThread(settings, database, listener)
    thread.start()
    try:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with httpx.Client(base_url=address, trust_env=False, timeout=60) as client:
            answers = [
                client.get("/v1/jobs", headers={"X-Forwarded-For": f"203.0.113.{number}"})
                for number in range(4)
            ]
            assert answers[-1].status_code == status
            assert "server" not in answers[-1].headers
            headers = {"Authorization": f"Bearer {token}", "X-Forwarded-For": "203.0.113.9"}
            body = {"name": "laptop", "scopes": ["read"]}
            assert client.post("/v1/tokens", json=body, headers=headers).status_code == 201
            (entry,) = client.get("/v1/audit", headers=headers).json()["data"]
            assert entry["address"] == ("203.0.113.9" if trusted else "127.0.0.1")
    finally:
        thread.stop()
        listener.close()
        database.dispose()
