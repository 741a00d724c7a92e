"""Killing the parts of a deployment, each as it would be killed in production."""

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from tests.chaos.deployment import Deployment
from tests.chaos.ray_cluster import RayCluster
from tests.support import processes
from tests.support.databases import PostgresServer
from tests.support.polling import until
from tests.support.s3_server import S3Server
from tests.support.stand_in.jobs_api import StandInRay

Target = Literal["api", "dispatcher", "driver", "worker", "ray", "node", "postgresql", "s3"]
ALL: tuple[Target, ...] = get_args(Target)
PROCESSES: tuple[Target, ...] = ("api", "dispatcher", "driver", "worker")
# Relative frequencies. After a kill of an attempt Ray Train starts again, which takes much longer than a
# start of the service, and after one of Ray's head or of a node Ray itself.
FREQUENCIES: dict[Target, int] = {
    "api": 4,
    "dispatcher": 4,
    "driver": 2,
    "worker": 2,
    "ray": 1,
    "node": 1,
    "postgresql": 2,
    "s3": 2,
}
_PATIENCE_SECONDS = 300.0
_OUTAGE_SECONDS = 0.5


@dataclass(frozen=True)
class Killer:
    """Kills one part of a deployment at a time, and starts it again where that is a supervisor's task.

    Attributes:
        feed: submits jobs, so that there is something to kill.
        ray: a cluster whose head and nodes can be killed; `None` if it is not to be.
        server: the PostgreSQL server; `None` if the database is SQLite.
        store: the S3 server; `None` if the artifacts are in a folder.
    """

    deployment: Deployment
    feed: Callable[[], None]
    random: random.Random
    ray: RayCluster | StandInRay | None
    server: PostgresServer | None
    store: S3Server | None

    def kill(self, target: Target, wait: float) -> None:
        """Kill one process or node, `wait` seconds after one exists.

        Raises:
            TimeoutError: none started for minutes although jobs were waiting.
        """
        if target == "driver" or target == "worker":
            self._kill_training("driver" if target == "driver" else "rank", wait)
            return
        time.sleep(wait)
        if target == "api" or target == "dispatcher":
            self.deployment.kill(target)
            self.deployment.start(target)
        elif target == "postgresql":
            assert self.server is not None, "SQLite has no server"
            self.server.stop_at_once()
            time.sleep(_OUTAGE_SECONDS)
            self.server.start()
        elif target == "s3":
            assert self.store is not None, "a folder has no server"
            self.store.kill()
            time.sleep(_OUTAGE_SECONDS)
            self.store.start()
        elif target == "ray":
            assert self.ray is not None
            self.ray.kill_head()
        else:
            assert isinstance(self.ray, RayCluster), "the stand-in has no nodes"
            self.ray.kill_node(self.random.randrange(self.ray.nodes))

    def _kill_training(self, part: processes.Part, wait: float) -> None:
        def candidates() -> list[int] | None:
            # All jobs may end while this waits for a process, so new ones are needed.
            self.feed()
            return sorted(p.pid for p in processes.training(os.getpid()) if p.part == part) or None

        until(candidates, f"a {part}", _PATIENCE_SECONDS)
        # Without this wait, only processes that have just started would be killed.
        time.sleep(wait)
        while True:
            pids = until(candidates, f"a {part}", _PATIENCE_SECONDS)
            try:
                os.kill(self.random.choice(pids), signal.SIGKILL)
            except ProcessLookupError:
                continue  # It ended by itself before the kill.
            return


def possible(
    targets: tuple[Target, ...], *, database: str, store: str, standin: bool
) -> list[Target]:
    """Return the targets that a deployment has."""
    absent = {"node"} if standin else set()
    if store == "folder":
        absent.add("s3")
    if database == "sqlite":
        absent.add("postgresql")
    return [target for target in targets if target not in absent]
