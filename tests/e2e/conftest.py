"""One `dasl serve` for all tests of this folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from service.client import Client
from service.client.models import Dataset, Job
from tests.support.running_service import (
    PATIENCE_SECONDS,
    Served,
    spec,
    until,
    write_broken_images,
    write_images,
    write_odd_images,
)

NUM_IMAGES = 356


@dataclass(frozen=True)
class Images:
    """A folder of images and what ingest must find in it."""

    root: Path
    usable: int
    broken: dict[str, str]


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    root = tmp_path_factory.mktemp("data") / "images"
    write_images(root, NUM_IMAGES)
    return Images(root, NUM_IMAGES + write_odd_images(root), write_broken_images(root))


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory, images: Images) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("home")
    output = home / "serve.out"
    env = {
        **{name: value for name, value in os.environ.items() if name[:5] != "DASL_"},
        "XDG_CONFIG_HOME": str(home / "config"),
        "DASL_HOME": str(home / "data"),
        "DASL_CACHE_DIR": str(home / "cache"),
        "DASL_PORT": "0",
        "DASL_HEARTBEAT_SECONDS": "0.5",
        # Ray else gives way to whatever runs beside it, which here are the other tests.
        "RAY_worker_niceness": "0",
    }
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "service.cli", "serve"],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=env,
        )

    def line(start: str) -> str | None:
        assert process.poll() is None, output.read_text()
        found = [x for x in output.read_text().splitlines() if x.startswith(start)]
        return found[-1].removeprefix(start) if found else None

    try:
        url = until(lambda: line("DASL serves at "), "the API")
        token = until(lambda: line("Token: "), "the token").split()[0]
        with Client(url, token, patience=60) as client:
            client.datasets.add(images.root, "pictures").wait(timeout=PATIENCE_SECONDS)
            yield Served(process.pid, url, token, client, "pictures", home / "data" / "artifacts")
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0, output.read_text()
        assert "Traceback" not in output.read_text(), output.read_text()
    finally:
        process.kill()
        process.wait()
        session = home / "data" / "ray"
        if session.is_symlink():
            shutil.rmtree(session.readlink().parent, ignore_errors=True)


@pytest.fixture(scope="session")
def client(served: Served) -> Client:
    return served.client


@pytest.fixture(scope="session")
def pictures(served: Served) -> Dataset:
    return served.client.datasets.get(served.dataset)


@pytest.fixture(scope="session")
def main_job(served: Served) -> Job:
    """The job of `spec`, undisturbed from its start to its success."""
    job = served.client.jobs.submit(spec(served.dataset, name="undisturbed"))
    return job.wait(timeout=PATIENCE_SECONDS, poll=0.2)
