"""Request ids: taken from the client or created, in responses, problems and log records."""

import logging
import re

import pytest
from fastapi.testclient import TestClient

from service.api.problems import Problem
from service.log_records import REQUESTS, JsonLines
from service.server.app import create_app
from tests.support.api_under_test import Api, refused

CREATED_ID = re.compile(r"[0-9a-f]{32}")


def test_request_id_is_kept_or_created(api: Api) -> None:
    created = [api.client.get("/livez").headers["x-request-id"] for _ in range(2)]
    assert created[0] != created[1]
    assert all(CREATED_ID.fullmatch(id) for id in created)
    headers = {"X-Request-ID": "from-a-proxy_1.2"}
    assert api.client.get("/livez", headers=headers).headers["x-request-id"] == "from-a-proxy_1.2"
    for bad in ("", "two words", "x" * 65, "line\tbreak", 'a"b', "ü"):
        answer = api.client.get("/livez", headers={b"X-Request-ID": bad.encode("latin-1")})
        assert CREATED_ID.fullmatch(answer.headers["x-request-id"]), bad


def test_every_problem_document_has_the_request_id(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    for method, path, status in (
        ("GET", "/v1/jobs/job_x", 404),
        ("GET", "/nowhere", 404),
        ("PUT", "/v1/jobs", 405),
        ("POST", "/v1/jobs", 422),
        ("GET", "/readyz", 503),
    ):
        answer = api.client.request(method, path, headers={"X-Request-ID": "mine"})
        assert refused(answer, status)["request_id"] == "mine"
        assert answer.headers["x-request-id"] == "mine"
    large = b"x" * (api.settings.max_body_bytes + 1)
    assert refused(api.client.post("/v1/jobs", content=large), 413)["request_id"]

    def broken(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr("service.jobs.service.find", broken)
    app = create_app(api.settings, api.database)
    with TestClient(app, raise_server_exceptions=False, headers=dict(api.client.headers)) as client:
        answer = client.get("/v1/jobs/job_x", headers={"X-Request-ID": "mine"})
        assert refused(answer, 500)["request_id"] == "mine"
        assert answer.headers["x-request-id"] == "mine"
        scraped = client.get("/metrics").text
        assert 'method="GET",route="/v1/jobs/{job_id}",status="5xx"' in scraped


def test_request_log_names_route_job_and_attempt(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    formatter = JsonLines()
    lines: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(formatter.format(record))

    api.dataset()
    job = api.submit()["id"]
    worker = api.start(job)
    logger = logging.getLogger(REQUESTS)
    listener = Listener()
    logger.addHandler(listener)
    with caplog.at_level(logging.DEBUG, logger.name):
        api.client.get(f"/v1/jobs/{job}?secret=1", headers={"X-Request-ID": "r1"})
        worker.post("start")
        api.client.get("/livez")
    logger.removeHandler(listener)
    levels = [record.levelname for record in caplog.records if record.name == logger.name]
    assert levels == ["INFO", "DEBUG", "DEBUG"]
    first, of_worker, _ = lines
    for part in (
        '"request": "r1"',
        f'"job": "{job}"',
        '"route": "/v1/jobs/{job_id}"',
        '"status": 200',
        '"method": "GET"',
    ):
        assert part in first
    assert f'"job": "{job}"' in of_worker
    assert '"attempt": "1"' in of_worker
    assert "secret" not in "".join(lines), "query strings must not be logged"


@pytest.mark.parametrize(
    ("status", "headers", "level"),
    [
        (503, {"Retry-After": "2"}, "INFO"),
        (503, {}, "ERROR"),
        (507, {"Retry-After": "2"}, "ERROR"),
    ],
)
def test_answer_that_asks_to_repeat_is_no_error_in_the_log(
    api: Api,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    status: int,
    headers: dict[str, str],
    level: str,
) -> None:
    def starting(*_: object) -> None:
        raise Problem(status, "search-starting", "The search is starting", headers=headers)

    monkeypatch.setattr("service.jobs.service.find", starting)
    with caplog.at_level(logging.DEBUG, REQUESTS):
        refused(api.client.get("/v1/jobs/job_x"), status, type="search-starting")
    levels = [record.levelname for record in caplog.records if record.name == REQUESTS]
    assert levels == [level]
