"""API, dispatcher and Ray as processes of their own, as in production, each to be killed alone.

Whoever uses this plays the supervisor of API and dispatcher: the two are started again as they were.
Drivers and ranks are the product's own affair.
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
    """What runs, and where."""

    home: Path
    database_url: str
    url: str
    token: str
    environment: dict[str, str]
    processes: dict[Service, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, service: Service) -> None:
        """Start the API or the dispatcher; what it prints is added to its log."""
        with (self.home / f"{service}.log").open("ab") as log:
            self.processes[service] = subprocess.Popen(
                [sys.executable, "-m", _COMMANDS[service]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
            )

    def kill(self, service: Service) -> None:
        """`kill -9`, and wait until it is gone."""
        self.processes[service].kill()
        self.processes[service].wait()

    def client(self) -> Client:
        """A client that goes on for minutes against an API that is away."""
        return Client(self.url, self.token, patience=PATIENCE_SECONDS)

    @property
    def is_ready(self) -> bool:
        """Whether work will be taken and done."""
        try:
            return httpx.get(f"{self.url}/readyz", trust_env=False).is_success
        except httpx.TransportError:
            return False


class Ray(Protocol):
    """What runs the attempts."""

    @property
    def address(self) -> str:
        """Of its Jobs API."""

    @property
    def token(self) -> str:
        """For that API."""

    def start(self) -> None:
        """Start it."""

    def stop(self) -> None:
        """End it and all that it runs."""


@contextmanager
def deployed(
    home: Path,
    database_url: str,
    *,
    cpus: int,
    settings: Mapping[str, str],
    ray: Ray | None = None,
) -> Iterator[Deployment]:
    """A deployment that is ready, with the small data set `DATASET`; nothing is left of it.

    Args:
        home: a folder of its own.
        database_url: an empty database.
        cpus: how many CPUs Ray hands out.
        settings: variables of API, dispatcher and workers.
        ray: stands in for a local Ray.
    """
    port = free_port()
    upgrade(database_url)
    database = Database(database_url)
    token = admin_token(database, home / "config.toml")
    database.dispose()
    own = {
        "DASL_HOME": str(home / "d"),
        "DASL_CACHE_DIR": str(home / "cache"),
        "DASL_DATABASE_URL": database_url,
        "DASL_PORT": str(port),
        # Ray runs `python`, which must be this one.
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
        **settings,
    }
    others = {name: value for name, value in os.environ.items() if not name.startswith("DASL_")}
    with patch.dict(os.environ, others | own, clear=True):
        ray = ray or LocalRay(home / "ray", home / "ray.log", cpus)
        if isinstance(ray, LocalRay):
            _start(ray)
        else:
            ray.start()
    access = {"DASL_RAY_ADDRESS": ray.address, "RAY_AUTH_TOKEN": ray.token}
    running = Deployment(
        home, database_url, f"http://127.0.0.1:{port}", token, others | own | access
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
    """Start Ray, again if need be: on a busy machine it may give up."""

    def runs() -> bool | None:
        if not ray.running:
            ray.stop()
            ray.start()
        # Printed when all of its parts are there, and not before.
        return "Ray runtime started" in ray.log.read_text() or None

    ray.start()
    until(runs, "Ray", pause=1.0)


def until(
    found: Callable[[], T | None],
    what: str,
    seconds: float = PATIENCE_SECONDS,
    *,
    pause: float = 0.2,
) -> T:
    """Poll until something is found.

    Raises:
        TimeoutError: it did not happen.
    """
    deadline = time.monotonic() + seconds
    while (result := found()) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited for {what} for {seconds:g} s in vain")
        time.sleep(pause)
    return result


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def write_images(folder: Path, count: int) -> None:
    """Noise of two classes: what is learned does not matter here."""
    random = np.random.default_rng(0)
    for number in range(count):
        target = folder / f"class-{number % 2}"
        target.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(target / f"{number:03d}.png")
