"""A real `dasl serve`: API, dispatcher and Ray in one process tree, with the stand-in for training."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from service.db.models import Attempt, Checkpoint, Job
from service.db.session import Database
from service.embedded.subreaper import descendants
from tests.support.polling import PATIENCE_SECONDS, until
from tests.support.processes import commands, free_port, is_alive
from tests.support.running_service import write_images

# One Ray at a time, because start-up is timed and several would share the cores.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray"), pytest.mark.timeout(1800)]

# Each attempt also starts a process in a session of its own, as a lost data loader might be.
SERVE = """
import sys
from service.dispatcher.context import Entrypoints
from service.embedded.serve import main
commands = Entrypoints.for_local_python()
driver = commands.job.replace("workers.driver", "tests.support.stand_in.training")
commands = Entrypoints(f"setsid sleep 1000 & exec {driver}", commands.ingest)
Entrypoints.for_local_python = staticmethod(lambda: commands)
sys.exit(main())
"""


@dataclass
class Served:
    """One `dasl serve` process."""

    process: subprocess.Popen[str]
    output: Path
    url: str = ""
    seen: set[int] = field(default_factory=set)
    """Process IDs of all descendants seen so far."""

    def text(self) -> str:
        return self.output.read_text()

    def line(self, start: str) -> str | None:
        lines = [line for line in self.text().splitlines() if line.startswith(start)]
        assert lines or self.process.poll() is None, self.text()
        return lines[-1].removeprefix(start) if lines else None

    def look(self) -> set[int]:
        self.seen |= descendants(self.process.pid)
        return self.seen

    def below(self, word: str) -> int | None:
        """Return the newest process with an argument that ends so; a guard precedes the real one."""
        for pid in sorted(self.look(), reverse=True):
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                if any(each.endswith(word) for each in words):
                    return pid
        return None

    def left(self) -> list[str]:
        """Return the command lines of its processes that are still alive."""
        lines = []
        for pid in filter(is_alive, self.seen):
            with suppress(OSError):  # It ended in the meantime.
                lines.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "))
        return lines

    def wait_until_nothing_is_left(self) -> None:
        deadline = time.monotonic() + 120
        while left := self.left():
            assert time.monotonic() < deadline, left
            time.sleep(0.05)


@dataclass
class Home:
    """A user's home, and the services started in it."""

    path: Path
    started: list[Served] = field(default_factory=list)

    @property
    def config(self) -> Path:
        return self.path / "config" / "dasl" / "config.toml"

    def serve(self, **env: str) -> Served:
        output = self.path / f"serve-{len(self.started)}.out"
        environment = {
            **{name: value for name, value in os.environ.items() if name[:5] != "DASL_"},
            "HOME": str(self.path),
            "XDG_CONFIG_HOME": str(self.path / "config"),
            "DASL_HOME": str(self.path / "data"),
            "DASL_PORT": "0",
        }
        with output.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-u", "-c", SERVE],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**environment, **env},
                cwd=self.path,
                text=True,
            )
        served = Served(process, output)
        self.started.append(served)
        return served


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    for served in home.started:
        served.look()
        served.process.kill()
        served.process.wait()
        served.wait_until_nothing_is_left()
    # The next start would remove this folder.
    session = tmp_path / "data" / "ray"
    if session.is_symlink():
        shutil.rmtree(session.readlink().parent)


def answer(client: httpx.Client, path: str, **options: Any) -> Any:
    response = client.get(path, **options)
    assert response.is_success, response.text
    return response.json()


def checkpoints(client: httpx.Client, job: str) -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = answer(client, f"/v1/jobs/{job}/checkpoints")["data"]
    return data


def reported(client: httpx.Client, job: str, attempt: int) -> bool:
    """Return whether rank 0 of this attempt has reported its progress."""
    now = answer(client, f"/v1/jobs/{job}")
    return now["attempt"] == attempt and "images_per_second" in (now["progress"] or {})


def test_second_start_resumes_jobs_of_killed_service_and_restarts_dead_ray(home: Home) -> None:
    # First service: a dataset is ingested, and a job runs and saves a checkpoint.
    first = home.serve()
    url = until(lambda: first.line("DASL serves at "), "the API")
    assert until(lambda: first.line("Token: "), "the token") == f"in {home.config}"
    token = tomllib.loads(home.config.read_text())["token"]
    assert token not in first.output.read_text(), "a log is not the place for a token"
    assert home.config.stat().st_mode & 0o777 == 0o600
    assert home.config.read_text().splitlines()[1:] == [f'url = "{url}"', f'token = "{token}"']
    headers = {"Authorization": f"Bearer {token}"}
    # Without work there is no Ray.
    until(lambda: first.line("Ready"), "the dispatcher's lease")
    assert first.look() == set()
    images = home.path / "images"
    write_images(images, 40)
    with httpx.Client(base_url=url, headers=headers, timeout=60) as client:
        assert answer(client, "/livez")["status"] == "ok"
        assert answer(client, "/readyz")["checks"]["ray"] == "idle"
        body = {"name": "images", "uri": str(images)}
        dataset = client.post("/v1/datasets", json=body).json()["id"]
        until(
            lambda: answer(client, f"/v1/datasets/{dataset}")["state"] == "ready" or None, "ingest"
        )
        assert answer(client, "/readyz")["checks"]["ray"] == "ok"
        spec = {
            "name": "a job",
            "dataset": "images",
            "backbone": {"name": "test_resnet", "image_size": 16, "stem": "standard"},
            "train": {"epochs": 100_000, "batch_size": 8, "checkpoint_every_epochs": 10},
            "resources": {"max_restarts": 0},
        }
        submitted = client.post("/v1/jobs", json=spec)
        assert submitted.status_code == 201, submitted.text
        job = submitted.json()["id"]
        until(lambda: checkpoints(client, job) or None, "a checkpoint")
        assert answer(client, f"/v1/jobs/{job}")["status"] == "running"

    # A second service on the same home, and one on the same port.
    for env, complaint in (
        ({}, f"Process {first.process.pid} of {socket.gethostname()} serves {home.path / 'data'}"),
        (
            {"DASL_HOME": str(home.path / "other"), "DASL_PORT": url.rpartition(":")[2]},
            "Address already in use",
        ),
    ):
        other = home.serve(**env)
        assert other.process.wait(120) == 1
        assert complaint in other.text()
        assert "Traceback" not in other.text()

    # kill -9 leaves no process, not even one that left its session.
    first.look()
    lines = [" ".join(words) for words in commands(first.process.pid).values()]
    for part in ("gcs_server", "raylet", "dashboard.py", "stand_in.training", "sleep 1000"):
        assert any(part in line for line in lines), part
    for part in ("ray.util.client.server", "MetricsHead"):
        assert not any(part in line for line in lines), f"{part} has no use here"
    first.process.kill()
    first.process.wait()
    first.wait_until_nothing_is_left()

    # The second start has the same token and resumes the job from its checkpoint. Neither the kill of
    # the service nor Ray's failed start counts against the job.
    second = home.serve()
    os.kill(until(lambda: second.below("--head"), "the start of Ray"), signal.SIGKILL)
    url = until(lambda: second.line("DASL serves at "), "the API")
    until(lambda: second.line("Token: "), "the token")
    assert tomllib.loads(home.config.read_text())["token"] == token
    with httpx.Client(base_url=url, headers=headers, timeout=60) as client:
        until(
            lambda: any(c["attempt"] == 2 for c in checkpoints(client, job)) or None,
            "a checkpoint of the second attempt",
        )
        assert client.post(f"/v1/jobs/{job}/pause").is_success
        until(lambda: answer(client, f"/v1/jobs/{job}")["status"] == "paused" or None, "the pause")
        attempts = {a["number"]: a for a in answer(client, f"/v1/jobs/{job}/attempts")["data"]}
        assert {n: a["state"] for n, a in attempts.items()} == {1: "lost", 2: "paused"}
        assert "Ray did not start" in second.text()
        resumed = answer(client, f"/v1/checkpoints/{attempts[2]['resume_checkpoint_id']}")
        assert (resumed["attempt"], resumed["step"] > 0) == (1, True)
        line = f"training continues after step {resumed['step']}\n"
        until(lambda: line in client.get(f"/v1/jobs/{job}/logs").text or None, "the log")

    # A Ray that dies leaves nothing behind, and another one is started for the next work.
    complaints = second.text().count("Ray ended unexpectedly")
    second.look()
    os.kill(until(lambda: second.below("gcs_server"), "Ray's head"), signal.SIGKILL)
    before, second.seen = second.seen, set()
    until(lambda: second.text().count("Ray ended unexpectedly") > complaints or None, "Ray's end")
    assert [pid for pid in before if is_alive(pid)] == [], "something of the last Ray is there"

    # Ctrl-C lets the job save a checkpoint, queues it again, and ends all processes.
    with httpx.Client(base_url=url, headers=headers, timeout=60) as client:
        assert client.post(f"/v1/jobs/{job}/resume").is_success
        until(lambda: reported(client, job, attempt=3) or None, "the progress of the attempt")
    second.look()
    assert len(second.seen) > 10
    second.process.send_signal(signal.SIGINT)
    assert second.process.wait(PATIENCE_SECONDS) == 0, second.text()
    assert second.left() == []
    assert "Traceback" not in second.text(), second.text()
    database = Database(f"sqlite:///{home.path / 'data' / 'dasl.db'}")
    with database.read() as session:
        row, attempt = session.get_one(Job, job), session.get_one(Attempt, (job, 3))
        saved = session.scalars(select(Checkpoint.attempt).where(Checkpoint.job_id == job)).all()
    database.dispose()
    assert (row.status, row.restarts, attempt.state) == ("queued", 0, "paused")
    assert (attempt.stop_reason, 3 in saved) == ("shutdown", True)


def test_visit_starts_ray_which_ends_without_work_and_sigterm_stops_its_start(home: Home) -> None:
    port = free_port()
    served = home.serve(DASL_PORT=str(port), DASL_RAY_IDLE_MINUTES="0.02", DASL_STANDBY_RANKS="0")

    def alive() -> bool | None:
        try:
            return client.get("/livez").is_success or None
        except httpx.TransportError:
            return None

    def ray() -> str:
        checks: dict[str, str] = answer(client, "/readyz")["checks"]
        return checks["ray"]

    def visit() -> None:
        token = tomllib.loads(home.config.read_text())["token"]
        assert client.post("/v1/session", json={"token": token}).status_code == 201

    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        until(alive, "/livez")
        until(lambda: served.line("Ready"), "the dispatcher's lease")
        assert served.look() == set()
        visit()
        until(lambda: served.below("gcs_server"), "Ray's start")
        until(lambda: served.line("Ray runs. "), "Ray")
        until(lambda: ray() == "idle" or None, "the end of an hour")
        served.wait_until_nothing_is_left()
        visit()
        until(lambda: served.below("gcs_server"), "Ray's next start")
        assert ray() == "starting"
    served.look()
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(PATIENCE_SECONDS) == 0, served.text()
    assert served.left() == []
    assert "Traceback" not in served.text()
    assert "ended unexpectedly" not in served.text()
