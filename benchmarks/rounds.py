"""Rounds of the dispatcher while Ray and the store answer slowly: ``python -m benchmarks.rounds``.

* ``starts``: 120 jobs fit at the same moment, and Ray accepts a submission in half a second. How old the snapshot of the
  cluster becomes, which `/readyz` and admission use, how often `/readyz` fails, and after how long a request to cancel a
  running job is acted on.
* ``logs``: 100 attempts run, and a copy of a log takes 0.2 s, about four requests of S3. After how long a job starts that
  waits for the room of an attempt that ends.

A real dispatcher with SQLite and an API; the drivers are shells.
"""

import argparse
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.machine import machine, write_results
from service.db import migrate
from service.db.session import Database
from service.dispatcher.log_copier import LogCopier
from service.dispatcher.loop import Dispatcher
from service.scheduling import repository as scheduling
from service.scheduling.nodes import Node
from service.settings import Settings
from service.states import JobStatus
from tests.support.api_under_test import Api, served
from tests.support.dispatcher_world import ENTRYPOINTS, World
from tests.support.fake_executor import FakeExecutor

RESULTS = Path(__file__).parent / "results" / "rounds.json"
STARTS, SUBMIT_SECONDS = 120, 0.5
RUNNING, COPY_SECONDS = 100, 0.2
LIMITS = {
    "oldest_snapshot_seconds": 5.0,
    "cancel_seconds": 3.0,
    "not_ready": 0,
    "room_seconds": 5.0,
}


def main() -> int:
    """Measure both and print the figures; return 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    figures: dict[str, Any] = {}
    for measure in (starts, logs):
        with tempfile.TemporaryDirectory(prefix="dasl-rounds-") as folder, world_in(folder) as all:
            figures |= measure(*all)
    print(figures)
    write_results(arguments.output, {"machine": machine(), **figures})
    return int(any(figures[name] > limit for name, limit in LIMITS.items()))


@contextmanager
def world_in(folder: str) -> Iterator[tuple[World, Api]]:
    """Yield a world with a dispatcher whose clock is real, and an API."""
    settings = Settings(home=Path(folder), database_url=f"sqlite:///{folder}/dasl.db")
    migrate.upgrade(settings.database_url)
    database, executor = Database(settings.database_url), FakeExecutor(cpus=STARTS + 1)
    world = World(settings, database, executor)
    world.dispatcher = Dispatcher(
        settings, database, executor, holder="rounds", entrypoints=ENTRYPOINTS
    )
    with served(settings, database) as api:
        yield world, api
    executor.close()


@contextmanager
def run(dispatcher: Dispatcher) -> Iterator[None]:
    """Run the dispatcher's loops in a thread."""
    stop = threading.Event()
    thread = threading.Thread(target=dispatcher.run, args=(stop,))
    thread.start()
    yield
    stop.set()
    thread.join()


def starts(world: World, api: Api) -> dict[str, Any]:
    """Measure rounds in which many jobs start."""
    running = start(world)
    submit, oldest, not_ready, polls = world.executor.submit, 0.0, 0, 0

    def slowly(*arguments: Any) -> None:
        time.sleep(SUBMIT_SECONDS)
        submit(*arguments)

    cancelled_at = None
    with patch.object(world.executor, "submit", slowly):
        waiting = [world.add_job() for _ in range(STARTS)]
        with run(world.dispatcher):
            time.sleep(2)
            began = time.monotonic()
            world.cancel(running)
            while cancelled_at is None or any(
                world.status(job) == JobStatus.QUEUED or world.attempt(job).state == "created"
                for job in waiting
            ):
                polls += 1
                not_ready += api.client.get("/readyz").status_code != 200
                with world.database.read() as session:
                    snapshot = scheduling.snapshot(session)
                assert snapshot is not None
                oldest = max(oldest, (datetime.now(UTC) - snapshot.at).total_seconds())
                if cancelled_at is None and world.status(running) != JobStatus.RUNNING:
                    cancelled_at = time.monotonic() - began
                time.sleep(0.2)
            seconds = time.monotonic() - began
    return {
        "starts": STARTS,
        "starts_seconds": seconds,
        "oldest_snapshot_seconds": oldest,
        "polls": polls,
        "not_ready": not_ready,
        "cancel_seconds": cancelled_at,
    }


def start(world: World) -> str:
    """Start a job whose ranks report."""
    job = world.add_job()
    world.dispatcher.tick()
    world.worker_starts(job)
    return job


def logs(world: World, _: Api) -> dict[str, Any]:
    """Measure the end of an attempt while the logs of many others are copied."""
    world.executor.nodes[0] = Node("n", "127.0.0.1", RUNNING, 0, 0, 0)
    jobs = [start(world) for _ in range(RUNNING)]
    copy = LogCopier._copy

    def slowly(*arguments: Any, **options: Any) -> int:
        time.sleep(COPY_SECONDS)
        return copy(*arguments, **options)

    waiting = world.add_job()
    with patch.object(LogCopier, "_copy", slowly), run(world.dispatcher):
        time.sleep(6)
        began = time.monotonic()
        world.end_job(jobs[RUNNING // 2], "succeeded")
        while world.status(waiting) == JobStatus.QUEUED:
            time.sleep(0.05)
        return {"running": RUNNING, "room_seconds": time.monotonic() - began}


if __name__ == "__main__":
    raise SystemExit(main())
