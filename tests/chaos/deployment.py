"""Deployment for chaos tests: API, dispatcher and Ray are separate processes, as in production.

The caller acts as the supervisor of API and dispatcher and restarts them. The product must bring back
drivers and ranks.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from unittest.mock import patch

import httpx

from service.client import Client
from service.db.migrate import upgrade
from service.db.session import Database
from service.embedded.bootstrap_token import admin_token
from service.embedded.local_ray import LocalRay
from tests.chaos.ray_cluster import RayCluster
from tests.support.polling import PATIENCE_SECONDS, until
from tests.support.processes import free_port
from tests.support.running_service import write_images
from tests.support.stand_in.jobs_api import StandInRay

DATASET = "pictures"

Service = Literal["api", "dispatcher"]
_COMMANDS: dict[Service, str] = {"api": "service.server", "dispatcher": "service.dispatcher"}


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


@contextmanager
def deployed(
    home: Path,
    database_url: str,
    *,
    cpus: int,
    settings: Mapping[str, str],
    ray: StandInRay | RayCluster | None = None,
) -> Iterator[Deployment]:
    """Yield a ready deployment with the small data set `DATASET`; stop all of it afterwards.

    Args:
        home: an empty folder for all files.
        database_url: URL of an empty database.
        cpus: number of CPUs that Ray offers.
        settings: environment variables of API, dispatcher and workers.
        ray: replaces the local Ray of one node.
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
    other_variables = {
        name: value for name, value in os.environ.items() if not name.startswith("DASL_")
    }
    with patch.dict(os.environ, other_variables | deployed_settings, clear=True):
        cluster = ray or LocalRay(home / "ray", home / "ray.log", cpus)
        cluster.start()
        if isinstance(cluster, LocalRay):
            wait_for(cluster)
    access = {"DASL_RAY_ADDRESS": cluster.address, "RAY_AUTH_TOKEN": cluster.token}
    environment = other_variables | deployed_settings | access
    deployment = Deployment(home, database_url, f"http://127.0.0.1:{port}", token, environment)
    try:
        for service in _COMMANDS:
            deployment.start(service)
        until(lambda: deployment.is_ready or None, "a service that is ready", pause=1.0)
        write_images(home / "images", 40)
        with deployment.client() as client:
            client.datasets.add(home / "images", DATASET).wait(timeout=PATIENCE_SECONDS)
        yield deployment
    finally:
        for process in deployment.processes.values():
            process.kill()
            process.wait()
        cluster.stop()


def wait_for(ray: LocalRay) -> None:
    """Wait until Ray runs; start it again if it exits, as it may on a busy machine."""

    def runs() -> bool | None:
        if not ray.running:
            ray.stop()
            ray.start()
        # Ray prints this line when all its parts run.
        return "Ray runtime started" in ray.log.read_text() or None

    until(runs, "Ray", pause=1.0)
