"""API, dispatcher and Ray as separate processes, as in production, which can be killed one by one.

The caller acts as the supervisor of API and dispatcher and restarts them. The product must bring back
drivers and ranks.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeVar
from unittest.mock import patch

import httpx
import numpy as np
from PIL import Image

from service.client import Client
from service.db.migrate import upgrade
from service.db.session import Database
from service.embedded.bootstrap_token import admin_token
from service.embedded.local_ray import LocalRay

DATASET = "pictures"
PATIENCE_SECONDS = 600.0

Service = Literal["api", "dispatcher"]
_COMMANDS: dict[Service, str] = {
    "api": "service.server",
    "dispatcher": "service.dispatcher",
}

T = TypeVar("T")


@dataclass
class Deployment:
    """The running processes and how to reach them."""

    home: Path
    database_url: str
    url: str
    token: str
    environment: dict[str, str]
    processes: dict[Service, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, service: Service) -> None:
        """Start the API or the dispatcher and append its output to its log."""
        with (self.home / f"{service}.log").open("ab") as log:
            self.processes[service] = subprocess.Popen(
                [sys.executable, "-m", _COMMANDS[service]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
            )

    def kill(self, service: Service) -> None:
        """Kill a process with SIGKILL and wait until it has ended."""
        self.processes[service].kill()
        self.processes[service].wait()

    def client(self) -> Client:
        """Return a client that retries for minutes while the API is down."""
        return Client(self.url, self.token, patience=PATIENCE_SECONDS)

    @property
    def is_ready(self) -> bool:
        """Whether the API reports that it is ready."""
        try:
            return httpx.get(f"{self.url}/readyz", trust_env=False).is_success
        except httpx.TransportError:
            return False


class Ray(Protocol):
    """A cluster that runs the attempts."""

    @property
    def address(self) -> str:
        """Address of its Jobs API."""

    @property
    def token(self) -> str:
        """Token for that API."""

    def start(self) -> None:
        """Start the cluster."""

    def stop(self) -> None:
        """Stop the cluster and everything that it runs."""


@contextmanager
def deployed(
    home: Path,
    database_url: str,
    *,
    cpus: int,
    settings: Mapping[str, str],
    ray: Ray | None = None,
) -> Iterator[Deployment]:
    """Yield a ready deployment with the small data set `DATASET`; stop all of it afterwards.

    Args:
        home: an empty folder for all files.
        database_url: URL of an empty database.
        cpus: number of CPUs that Ray offers.
        settings: environment variables of API, dispatcher and workers.
        ray: replaces the local Ray.
    """
    port = free_port()
    upgrade(database_url)
    database = Database(database_url)
    token = admin_token(database, home / "config.toml")
    database.dispose()
    deployed_settings = {
        "DASL_HOME": str(home / "d"),
        "DASL_CACHE_DIR": str(home / "cache"),
        "DASL_DATABASE_URL": database_url,
        "DASL_PORT": str(port),
        # Ray runs `python`, which must be this interpreter.
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
        **settings,
    }
    others = {name: value for name, value in os.environ.items() if not name.startswith("DASL_")}
    with patch.dict(os.environ, others | deployed_settings, clear=True):
        ray = ray or LocalRay(home / "ray", home / "ray.log", cpus)
        if isinstance(ray, LocalRay):
            _start(ray)
        else:
            ray.start()
    access = {"DASL_RAY_ADDRESS": ray.address, "RAY_AUTH_TOKEN": ray.token}
    running = Deployment(
        home, database_url, f"http://127.0.0.1:{port}", token, others | deployed_settings | access
    )
    try:
        for service in _COMMANDS:
            running.start(service)
        until(lambda: running.is_ready or None, "a service that is ready", pause=1.0)
        write_images(home / "images", 40)
        with running.client() as client:
            client.datasets.add(home / "images", DATASET).wait(timeout=PATIENCE_SECONDS)
        yield running
    finally:
        for process in running.processes.values():
            process.kill()
            process.wait()
        ray.stop()


def _start(ray: LocalRay) -> None:
    """Start Ray, and retry, because on a busy machine it may give up."""

    def runs() -> bool | None:
        if not ray.running:
            ray.stop()
            ray.start()
        # Printed only once all of its parts run.
        return "Ray runtime started" in ray.log.read_text() or None

    ray.start()
    until(runs, "Ray", pause=1.0)


def until(
    poll: Callable[[], T | None],
    what: str,
    seconds: float = PATIENCE_SECONDS,
    *,
    pause: float = 0.2,
) -> T:
    """Call `poll` until it returns something other than None.

    Raises:
        TimeoutError: it returned None for `seconds`.
    """
    deadline = time.monotonic() + seconds
    while (result := poll()) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what} within {seconds:g} s")
        time.sleep(pause)
    return result


def free_port() -> int:
    """Return a TCP port that is free now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def write_images(folder: Path, count: int) -> None:
    """Write noise images of two classes; the content does not matter here."""
    random = np.random.default_rng(0)
    for number in range(count):
        target = folder / f"class-{number % 2}"
        target.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(target / f"{number:03d}.png")
