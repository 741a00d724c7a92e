"""`docker/health.py`: exit codes and messages."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "docker/health.py"
ANSWERS = {
    "/livez": (200, {"status": "ok"}),
    "/readyz": (503, {"checks": {"database": "ok", "dispatcher": "ok", "ray": "is away"}}),
    "/broken": (500, {}),
}


class Handler(BaseHTTPRequestHandler):
    """A stand-in for the API with fixed answers."""

    def do_GET(self) -> None:
        status, body = ANSWERS[self.path]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Discard log messages."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("arguments", "healthy", "message"),
    [
        (["/livez"], True, ""),
        (["/readyz"], False, "answers 503"),
        (["/broken"], False, "answers 500"),
        (["/readyz", "dispatcher"], True, ""),
        (["/readyz", "ray"], False, "ray: is away"),
        (["/broken", "ray"], False, "ray: unknown"),
    ],
)
def test_health_reports_server_answers(
    address: str, arguments: list[str], healthy: bool, message: str
) -> None:
    result = run_health(address + arguments[0], *arguments[1:])
    assert (result.returncode == 0) == healthy
    assert message in result.stderr


def test_health_reports_unreachable_server() -> None:
    result = run_health("http://127.0.0.1:1/livez")
    assert result.returncode == 1
    assert "does not answer" in result.stderr
    assert "Traceback" not in result.stderr


def run_health(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-S", SCRIPT, *arguments], capture_output=True, text=True, timeout=60
    )


def test_health_reads_the_age_of_a_file(tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    assert "No such file" in run_health(f"file://{alive}", "60").stderr
    alive.touch()
    assert run_health(f"file://{alive}", "60").returncode == 0
    os.utime(alive, (1000, 1000))
    result = run_health(f"file://{alive}", "60")
    assert result.returncode == 1
    assert "was last touched" in result.stderr
