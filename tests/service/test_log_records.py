"""Log lines: readable text or JSON, and no secret in either."""

import json
import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr

from service import credentials
from service.log_records import JsonLines, TextLines, log_fields
from service.server.app import create_app
from service.settings import Settings

# A fixed token, because a parametrized test needs the same id on all xdist workers.
TOKEN = "dasl_xoIOLzVmvZbaczsrn3-Y2PgN_JFNoAETuF8xNn5Ngp4"


def record(message: str, *args: object, **extra: Any) -> logging.LogRecord:
    logger = logging.getLogger("some.where")
    return logger.makeRecord("some.where", logging.WARNING, "", 0, message, args, None, extra=extra)


def failed(error: Exception) -> logging.LogRecord:
    logger = logging.getLogger("some.where")
    try:
        raise error
    except type(error):
        return logger.makeRecord("some.where", logging.ERROR, "", 0, "it broke", (), sys.exc_info())


def test_json_line_has_fields_and_context() -> None:
    lines = JsonLines(fields={"rank": 1})
    with log_fields(job="job_x", attempt=2):
        with log_fields(attempt=3):
            line = lines.format(record("a %s\nb", "ü", fields={"status": 200, "none": None}))
        outside = lines.format(record("later"))
    assert "\n" not in line
    fields = json.loads(line)
    assert fields.pop("time").endswith("+00:00")
    assert fields == {
        "level": "WARNING",
        "logger": "some.where",
        "message": "a ü\nb",
        "rank": 1,
        "job": "job_x",
        "attempt": 3,
        "status": 200,
    }
    assert json.loads(outside)["attempt"] == 2
    assert "job" not in json.loads(lines.format(record("after it")))


def test_log_line_includes_traceback() -> None:
    fields = json.loads(JsonLines().format(failed(KeyError("x"))))
    assert fields["exception"].startswith("Traceback")
    assert fields["exception"].endswith("KeyError: 'x'")
    assert "Traceback" in TextLines().format(failed(KeyError("x")))


def test_text_line_is_readable() -> None:
    with log_fields(job="job_x", attempt=2):
        line = TextLines().format(record("gone"))
    assert line.endswith(" WARNING gone [job=job_x attempt=2]")
    assert TextLines().format(record("gone")).endswith(" WARNING gone")


def test_log_context_belongs_to_one_thread() -> None:
    lines = []
    with log_fields(job="job_x"):
        thread = threading.Thread(target=lambda: lines.append(JsonLines().format(record("x"))))
        thread.start()
        thread.join()
    assert "job_x" not in lines[0]


@pytest.mark.parametrize("kind", [TextLines, JsonLines])
@pytest.mark.parametrize(
    ("message", "secret"),
    [
        (f"the token {TOKEN}", TOKEN),
        (f"{{'Authorization': 'Bearer {TOKEN}'}}", TOKEN),
        ("Authorization: bearer abc.def-123, then more", "abc.def-123"),
        ("cannot connect to postgresql+psycopg://me:p%40ss@host/db", "p%40ss"),
        ("cannot connect to postgresql+psycopg://:pa/ss@host/db", "pa/ss"),
        ("connection failed: host=db user=me password=hunter2 dbname=x", "hunter2"),
        ("Ray refuses 5a5a5a in RAY_AUTH_TOKEN", "5a5a5a"),
    ],
)
def test_log_lines_redact_secrets(kind: type[logging.Formatter], message: str, secret: str) -> None:
    lines = kind(["5a5a5a", ""])  # type: ignore[arg-type]
    with log_fields(uri=message):
        for line in (
            lines.format(record(message)),
            lines.format(record("%s", message)),
            lines.format(record("it", fields={"given": message})),
            lines.format(failed(RuntimeError(message))),
        ):
            assert secret not in line
            assert "***" in line
            if kind is JsonLines:
                json.loads(line)


def test_redaction_keeps_harmless_text() -> None:
    for message in ("dasl_core.train.trainer", "http://127.0.0.1:8000/v1", "job_01abc", "a@b.c"):
        assert message in TextLines().format(record(message))


def test_configured_process_writes_only_json_lines() -> None:
    script = """
import logging
from service.log_records import log_fields, configure
logging.basicConfig(format="not mine: %(message)s")
configure("json", job="job_x", secrets=["hush"])
logging.getLogger("httpx").info("GET /")
with log_fields(attempt=1):
    logging.getLogger("a.b").info("hush %s", {"x": 1})
try:
    1 / 0
except ZeroDivisionError:
    logging.exception("broken")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == ""
    first, second = map(json.loads, done.stderr.splitlines())
    assert (first["message"], first["attempt"], first["job"]) == ("*** {'x': 1}", 1, "job_x")
    assert (second["level"], "ZeroDivisionError" in second["exception"]) == ("ERROR", True)


def test_database_connection_errors_log_no_secret(tmp_path: Path) -> None:
    lines: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            # The default formatter does not redact: the records themselves must be clean.
            lines.append(logging.Formatter().format(record))

    listener = Listener()
    root = logging.getLogger()
    before = root.level
    root.addHandler(listener)
    root.setLevel(logging.DEBUG)
    try:
        settings = Settings(
            home=tmp_path,
            database_url="postgresql+psycopg://me:hunter2@127.0.0.1:9/x",
            ray_auth_token=SecretStr("5a5a5a"),
        )
        logging.getLogger("x").info("%s %r", settings, settings)
        with TestClient(create_app(settings)) as client:
            headers = {"Authorization": f"Bearer {TOKEN}"}
            assert client.get("/v1/jobs", headers=headers).status_code == 503
            assert client.post("/v1/jobs", headers=headers, json={}).status_code == 503
            assert client.get("/readyz", headers=headers).status_code == 503
    finally:
        root.removeHandler(listener)
        root.setLevel(before)
    assert any("/v1/jobs" in line for line in lines)
    for secret in (TOKEN, credentials.hash_token(TOKEN), "hunter2", "5a5a5a"):
        assert secret not in "".join(lines)
    assert {"hunter2", "5a5a5a"} <= set(settings.secrets)
