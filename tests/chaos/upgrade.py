"""Upgrade a service with running jobs, go back by restoring a backup, and upgrade it again.

    python -m tests.chaos.upgrade --from COMMIT --database postgresql

The older version is that of a commit of this repository. API and dispatcher are replaced, as in a
deployment, while Ray and the trainings run on. A job runs throughout; one waits for it; one is paused
under the older version and resumed under this one; one has ended. All must end well, the first one after
having been trained under both versions, and the final weights of equal jobs must be equal.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx

from benchmarks.machine import machine, write_results
from service.client import Client
from service.client.sync.models import Job
from service.db.session import Database
from service.embedded.local_ray import LocalRay
from tests.chaos import history
from tests.chaos.crashes import empty_database, own_all_processes
from tests.chaos.deployment import wait_for
from tests.support import processes
from tests.support.databases import PostgresServer
from tests.support.polling import PATIENCE_SECONDS, until
from tests.support.processes import free_port
from tests.support.running_service import write_images

RESULTS = Path(__file__).parent / "results"
REPOSITORY = Path(__file__).parents[2]
DATASET = "pictures"
CPUS = 2
STEPS_AN_EPOCH = 4
LONG_EPOCHS, SHORT_EPOCHS = 600, 40


@dataclass
class Version:
    """The code of one version, whose programs run in its folder."""

    folder: Path
    environment: dict[str, str]
    log: Path
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def run(self, *words: str) -> str:
        """Run `dasl` of this version and return what it prints."""
        done = subprocess.run(
            [sys.executable, "-m", "service.cli", *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"dasl {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def start(self) -> None:
        """Start API and dispatcher, and wait until they are ready."""
        with self.log.open("ab") as log:
            self.running = [
                subprocess.Popen(
                    [sys.executable, "-m", f"service.{name}"],
                    cwd=self.folder,
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
                for name in ("server", "dispatcher")
            ]
        until(lambda: self._is_ready or None, "a service that is ready", pause=0.5)

    def stop(self) -> None:
        """Stop API and dispatcher; attempts run on."""
        for process in self.running:
            process.send_signal(signal.SIGTERM)
        for process in self.running:
            assert process.wait(60) == 0, self.log.read_text()[-4000:]
        self.running = []

    @property
    def _is_ready(self) -> bool:
        assert all(process.poll() is None for process in self.running), self.log.read_text()[-4000:]
        port = self.environment["DASL_PORT"]
        try:
            return httpx.get(f"http://127.0.0.1:{port}/readyz", trust_env=False).is_success
        except httpx.TransportError:
            return False


def main() -> int:
    """Run the trial, write the results, and return 1 if anything was lost or done twice."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="commit", required=True, help="commit of the older version")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    before = machine("torch", "ray", "sqlalchemy")
    own_all_processes()
    with (
        tempfile.TemporaryDirectory(prefix="dasl-upgrade-") as folder,
        empty_database(options.database, Path(folder)) as (url, server),
    ):
        result = trial(Path(folder), options.commit, url, server)
    result = {"from": options.commit, "database": options.database, **result}
    print(json.dumps(result, indent=2))
    output = options.output or RESULTS / f"upgrade-{options.database}.json"
    write_results(output, {"machine": before, "result": result})
    return 1 if result["violations"] else 0


def trial(
    folder: Path, commit: str, database_url: str, server: PostgresServer | None
) -> dict[str, Any]:
    """Run the trial in an empty folder and return counts and violations."""
    old_code = folder / "old"
    _export(commit, old_code)
    with _versions(folder, old_code, database_url, server) as (old, new):
        old.run("db", "upgrade")
        token = old.run("db", "admin-token", "trial")
        old.start()
        url = f"http://127.0.0.1:{old.environment['DASL_PORT']}"
        write_images(folder / "images", 40)
        with Client(url, token, patience=PATIENCE_SECONDS) as client:
            client.datasets.add(folder / "images", DATASET).wait(timeout=PATIENCE_SECONDS)
            jobs = _prepare(client)
            _say("the older version runs jobs")
            at_backup = _step(client, jobs["running"])
            backup = folder / "backup"
            old.run("db", "backup", str(backup))
            old.stop()

            new.run("db", "upgrade")
            new.start()
            _say("upgraded")
            _until_saved(client, jobs["running"])
            upgraded = jobs["running"].refresh()
            jobs["paused"].resume()
            at_rollback = _step(client, jobs["running"])
            new.stop()

            _restore(old, backup, server)
            old.start()
            _say("rolled back")
            _until_saved(client, jobs["running"])
            until(
                lambda: _step(client, jobs["running"]) > at_rollback or None,
                "a report to the restored database",
                pause=0.5,
            )
            rolled_back = jobs["running"].refresh()
            at_second_upgrade = _step(client, jobs["running"])
            old.stop()

            new.run("db", "upgrade")
            new.start()
            _say("upgraded again")
            # The restored database does not know that it was resumed.
            jobs["paused"].resume()
            ended = {
                name: job.wait(timeout=PATIENCE_SECONDS, poll=0.5) for name, job in jobs.items()
            }
        until(lambda: not processes.training(os.getpid()) or None, "the end of all processes", 120)
        new.stop()
    steps = {
        job.id: STEPS_AN_EPOCH * (LONG_EPOCHS if name == "running" else SHORT_EPOCHS)
        for name, job in jobs.items()
    }
    database = Database(database_url)
    violations = [
        *history.violations(
            database,
            {name: job.id for name, job in jobs.items()},
            steps,
            # Reported to the database that the backup has replaced.
            {jobs["running"].id: range(at_backup + 1, at_second_upgrade)},
        ),
        *history.weight_differences(
            database, {job.id: "short" for name, job in jobs.items() if name != "running"}
        ),
    ]
    database.dispose()
    return {
        "step_at_backup": at_backup,
        "step_at_rollback": at_rollback,
        "step_at_second_upgrade": at_second_upgrade,
        "attempt_after_upgrade": upgraded.attempt,
        "attempt_after_rollback": rolled_back.attempt,
        "jobs": {
            name: {"status": job.status, "attempts": job.attempt, "restarts": job.restarts}
            for name, job in ended.items()
        },
        "violations": violations,
    }


def _say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {what}", flush=True)


def _prepare(client: Client) -> dict[str, Job]:
    """Bring jobs into the states that an upgrade meets."""
    ended = client.jobs.submit(_spec(SHORT_EPOCHS)).wait(timeout=PATIENCE_SECONDS)
    paused = client.jobs.submit(_spec(SHORT_EPOCHS))
    until(lambda: _step(client, paused) or None, "the first step of a job", pause=0.5)
    paused.pause()
    until(lambda: paused.refresh().status == "paused" or None, "a paused job", pause=0.5)
    running = client.jobs.submit(_spec(LONG_EPOCHS, workers=CPUS))
    waiting = client.jobs.submit(_spec(SHORT_EPOCHS))
    _until_saved(client, running)
    assert waiting.refresh().status == "queued"
    return {"ended": ended, "paused": paused, "running": running, "waiting": waiting}


def _spec(epochs: int, workers: int = 1) -> dict[str, Any]:
    return {
        "name": "upgrade",
        "dataset": DATASET,
        "backbone": {"name": "test_resnet", "image_size": 16, "stem": "standard"},
        "train": {"epochs": epochs, "batch_size": 8, "checkpoint_every_epochs": min(epochs, 50)},
        "evaluate": {"every_epochs": epochs},
        "resources": {"workers": workers, "cpus_per_worker": 1},
    }


def _step(client: Client, job: Job) -> int:
    progress = client.jobs.get(job.id).progress
    return 0 if progress is None else progress.step or 0


def _until_saved(client: Client, job: Job) -> None:
    """Wait until a running job has saved a checkpoint further on than those before this call."""

    def newest() -> int:
        assert not (latest := job.refresh()).done, f"it ended as {latest.status}: {latest.error}"
        return max((each.step for each in client.jobs.checkpoints(job.id)), default=0)

    before = newest()
    until(lambda: newest() > before or None, f"a checkpoint after step {before}", pause=0.5)


def _restore(version: Version, backup: Path, server: PostgresServer | None) -> None:
    """Restore a backup; on PostgreSQL into an empty database of the same name, as the message says."""
    if server is not None:
        server.empty()
    version.run("db", "restore", str(backup))


def _export(commit: str, folder: Path) -> None:
    """Write the files of a commit to a folder."""
    folder.mkdir()
    archive = subprocess.run(
        ["git", "archive", commit], cwd=REPOSITORY, stdout=subprocess.PIPE, check=True
    ).stdout
    subprocess.run(["tar", "--extract", "--directory", str(folder)], input=archive, check=True)


@contextmanager
def _versions(
    folder: Path, old_code: Path, database_url: str, server: PostgresServer | None
) -> Iterator[tuple[Version, Version]]:
    """Yield both versions with a running Ray, whose jobs run the older version's code."""
    programs = [Path(sys.executable).parent, *([] if server is None else [server.programs])]
    settings = {
        "DASL_HOME": str(folder / "home"),
        "DASL_CACHE_DIR": str(folder / "cache"),
        "DASL_DATABASE_URL": database_url,
        "DASL_PORT": str(free_port()),
        "DASL_HEARTBEAT_SECONDS": "0.5",
        "DASL_LEASE_SECONDS": "4",
        "PATH": os.pathsep.join([*map(str, programs), os.environ.get("PATH", "")]),
    }
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("DASL_")}
    with patch.dict(os.environ, inherited | settings | {"PYTHONPATH": str(old_code)}, clear=True):
        ray = LocalRay(folder / "ray", folder / "ray.log", CPUS)
        ray.start()
        wait_for(ray)
    access = {"DASL_RAY_ADDRESS": ray.address, "RAY_AUTH_TOKEN": ray.token}
    environment = {k: v for k, v in inherited.items() if k != "PYTHONPATH"} | settings | access
    versions = [
        Version(code, environment, folder / f"{name}.log")
        for name, code in (("old", old_code), ("new", REPOSITORY))
    ]
    try:
        yield versions[0], versions[1]
    finally:
        for version in versions:
            for process in version.running:
                process.kill()
                process.wait()
        ray.stop()


if __name__ == "__main__":
    raise SystemExit(main())
