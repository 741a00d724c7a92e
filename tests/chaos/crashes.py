"""Kill processes at random moments, under a stream of small jobs.

    python -m tests.chaos.crashes --database sqlite --kills 200 --seed 0
    python -m tests.chaos.crashes --database postgresql --kills 100 --targets all

API, dispatcher, database and the nodes of Ray are restarted at once, as a supervisor does. The product
must bring back drivers and ranks. Afterwards `history` checks the tables and files.

A results file contains one run for each seed; a run adds to the file or replaces the run of its seed.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import func, select

from benchmarks.machine import machine, write_results
from service.client import Client
from service.db.models import Attempt, Checkpoint, Event
from service.db.session import AWAY, Database
from service.embedded.subreaper import adopt_orphans
from tests.chaos import history, kills
from tests.chaos.deployment import DATASET, deployed
from tests.chaos.kills import Killer, Target
from tests.chaos.ray_cluster import RayCluster
from tests.support import processes
from tests.support.databases import PostgresServer, postgres_server
from tests.support.polling import until
from tests.support.s3_server import BUCKET, S3Server, environment, s3_server
from tests.support.stand_in.jobs_api import StandInRay

RESULTS = Path(__file__).parent / "results"
SETTINGS = {
    "DASL_HEARTBEAT_SECONDS": "0.5",
    # A killed dispatcher is replaced only after this time; with the default of 30 s there would
    # rarely be one.
    "DASL_LEASE_SECONDS": "4",
    # Otherwise Ray has a lower priority than the service, the database and this process.
    "RAY_worker_niceness": "0",
}
_EPOCHS, _STEPS_AN_EPOCH = 60, 4
# Real trainings save by time only. The stand-in's jobs are too short for that.
_SAVE_EVERY_MINUTES = 0.1
# What a step, and a checkpoint on its way to the store, add to the interval on a busy machine.
_SAVING_SECONDS = 5.0
_CHECK_EVERY_SECONDS = 0.5
_END_PATIENCE_SECONDS = 1500.0


@dataclass
class Stream:
    """Submits jobs of a few kinds, `width` at a time.

    Attributes:
        accepted: job ids by idempotency key.
        kinds: kind of each job; jobs of one kind must compute the same.
    """

    client: Client
    width: int
    random: random.Random
    saves_by_time: bool
    accepted: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    _live: set[str] = field(default_factory=set)

    def feed(self) -> None:
        """Submit until `width` jobs are live."""
        self._live = {job for job in self._live if not self.client.jobs.get(job).done}
        while len(self._live) < self.width:
            self._live.add(self._submit())

    def repeat(self) -> None:
        """Repeat a random earlier submission, as after a lost response."""
        key = self.random.choice(list(self.accepted))
        spec = _spec(self.kinds[self.accepted[key]], self.saves_by_time)
        job = self.client.jobs.submit(spec, idempotency_key=key)
        assert job.id == self.accepted[key], f"{key} was answered with {job.id}"

    def ended(self) -> bool | None:
        """Return True if all jobs have ended, else None, as `until` expects."""
        self._live = {job for job in self._live if not self.client.jobs.get(job).done}
        return not self._live or None

    def _submit(self) -> str:
        key = f"submission-{len(self.accepted)}"
        kind = f"{self.random.choice((1, 1, 2))} ranks, seed {self.random.choice((0, 1))}"
        job = self.client.jobs.submit(_spec(kind, self.saves_by_time), idempotency_key=key)
        self.accepted[key] = job.id
        self.kinds[job.id] = kind
        return job.id


class OverlapMonitor(threading.Thread):
    """Thread that checks continuously whether ranks of two attempts of one job are alive together."""

    def __init__(self, database: Database) -> None:
        super().__init__(name="overlap-monitor", daemon=True)
        self._database = database
        self._stop_soon = threading.Event()
        self.violations: set[str] = set()
        self.checks = 0

    def run(self) -> None:
        """Check until `stop` is called."""
        while not self._stop_soon.wait(_CHECK_EVERY_SECONDS):
            alive = _ranks()
            self.checks += 1
            if len(alive) < 2:
                continue
            # A scan takes a while: one rank may end and the next start in it. Those that the next scan
            # finds as well were alive together in between.
            alive &= _ranks()
            try:
                self.violations |= self._overlaps(alive)
            except AWAY:
                self.checks -= 1  # The database was killed.

    def _overlaps(self, submissions: set[str]) -> set[str]:
        with self._database.read() as session:
            rows = session.execute(
                select(Attempt.job_id, func.count(), func.min(Attempt.number))
                .where(Attempt.submission_id.in_(submissions))
                .group_by(Attempt.job_id)
            )
            return {
                f"{job}: ranks of attempt {first} and of a later one were alive together"
                for job, count, first in rows
                if count > 1
            }

    def stop(self) -> None:
        """Stop the thread."""
        self._stop_soon.set()
        self.join()


def _ranks() -> set[str]:
    """Return the submission ids of the ranks that are alive."""
    return {p.submission_id for p in processes.training(os.getpid()) if p.part == "rank"}


def main() -> int:
    """Kill processes, write the results, and return 1 if anything was lost or done twice."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--store", choices=("folder", "s3"), default="folder")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--targets",
        type=_targets,
        default=kills.PROCESSES,
        help=f"what to kill, separated by commas, or all: {', '.join(kills.ALL)}",
    )
    parser.add_argument("--width", type=int, default=3, help="concurrent jobs")
    parser.add_argument(
        "--mean-wait", type=float, default=5.0, help="mean seconds between two kills"
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="stop killing after this time")
    parser.add_argument(
        "--standin",
        action="store_true",
        help="replace Ray by a stand-in that starts drivers at once, and training by hashing",
    )
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    before = machine("torch", "ray", "sqlalchemy")
    own_all_processes()
    with (
        tempfile.TemporaryDirectory(prefix="dasl-crash-") as folder,
        empty_database(options.database, Path(folder)) as (url, server),
        empty_store(options.store, Path(folder)) as store,
    ):
        result = crash(
            Path(folder),
            url,
            server,
            store,
            targets=kills.possible(
                options.targets,
                database=options.database,
                store=options.store,
                standin=options.standin,
            ),
            number=options.kills,
            seed=options.seed,
            width=options.width,
            mean_wait=options.mean_wait,
            minutes=options.minutes,
            standin=options.standin,
        )
    print(json.dumps(result, indent=2))
    name = f"crashes-{options.database}{'-standin' if options.standin else ''}"
    name += "-s3" if options.store == "s3" else ""
    if options.targets != kills.PROCESSES:
        name += "-all"
    output = options.output or RESULTS / f"{name}.json"
    add_to_results(output, {"machine": before, "database": options.database, "result": result})
    return 1 if result["violations"] else 0


def _targets(text: str) -> tuple[Target, ...]:
    names = kills.ALL if text == "all" else text.split(",")
    if unknown := sorted({*names} - {*kills.ALL}):
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}")
    return tuple(target for target in kills.ALL if target in names)


def add_to_results(output: Path, run: dict[str, Any]) -> None:
    """Add a run to a results file, replace an earlier run of the same seed, and update the totals."""
    runs = json.loads(output.read_text())["runs"] if output.exists() else []
    runs = [other for other in runs if other["result"]["seed"] != run["result"]["seed"]] + [run]
    runs.sort(key=lambda run: int(run["result"]["seed"]))
    results = [run["result"] for run in runs]
    totals = {
        "kills": sum(result["kills"] for result in results),
        "jobs": sum(result["jobs"] for result in results),
        "violations": [violation for result in results for violation in result["violations"]],
    }
    write_results(output, {"together": totals, "runs": runs})


def own_all_processes() -> None:
    """Exit normally on SIGTERM, and adopt orphaned descendants of this process."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    adopt_orphans()


@contextmanager
def empty_database(kind: str, folder: Path) -> Iterator[tuple[str, PostgresServer | None]]:
    """Yield the URL of an empty database of the given kind, and its server if it has one."""
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'dasl.db'}", None
    else:
        with postgres_server() as server:
            yield server.url, server


@contextmanager
def empty_store(kind: str, folder: Path) -> Iterator[S3Server | None]:
    """Yield an S3 server with an empty bucket, and set the variables of its clients; `None` for a folder."""
    if kind == "folder":
        yield None
        return
    files = folder / "s3"
    files.mkdir()
    with s3_server(files) as server, environment(server.environment):
        yield server


def crash(
    home: Path,
    database_url: str,
    server: PostgresServer | None,
    store: S3Server | None,
    *,
    targets: Sequence[Target],
    number: int,
    seed: int,
    width: int,
    mean_wait: float,
    minutes: float,
    standin: bool,
) -> dict[str, Any]:
    """Kill `number` processes, wait for all jobs, and return counts and violations.

    Args:
        server: the server of the database, if it has one.
        store: the S3 server for the artifacts; `None`: they are in a folder.
        targets: what to kill.
        mean_wait: seconds between two kills; each wait is drawn evenly from 0 to twice that.
        minutes: time after which no more processes are killed.
        standin: replace Ray and training by stand-ins.
    """
    # Drawn in advance, so that targets and times depend only on the seed.
    rng = random.Random(seed)
    frequencies = [kills.FREQUENCIES[target] for target in targets]
    drawn = rng.choices(targets, frequencies, k=number)
    waits = [rng.uniform(0, 2 * mean_wait) for _ in range(number)]
    began = time.monotonic()
    kill_log: list[dict[str, Any]] = []
    ray: StandInRay | RayCluster | None = None
    if standin:
        ray = StandInRay(home / "ray.log", width + 1)
    elif {"ray", "node"} & {*targets}:
        ray = RayCluster(home / "ray.log", ((width + 1) // 2 + 1,) * 2)
    settings = SETTINGS | ({"DASL_ARTIFACTS_URI": f"s3://{BUCKET}/chaos"} if store else {})
    with deployed(home, database_url, cpus=width + 1, settings=settings, ray=ray) as deployment:
        database = Database(database_url)
        monitor = OverlapMonitor(database)
        monitor.start()
        with deployment.client() as client:
            stream = Stream(client, width, rng, saves_by_time=not standin)
            killer = Killer(deployment, stream.feed, rng, ray, server, store)
            first_kill = time.monotonic()
            for wait, target in zip(waits, drawn, strict=True):
                if time.monotonic() - first_kill > 60 * minutes:
                    break
                stream.feed()
                killer.kill(target, wait)
                seconds = round(time.monotonic() - first_kill, 1)
                kill_log.append({"target": target, "at_seconds": seconds})
                print(f"{seconds:8.1f} s  kill {len(kill_log)}: {target}", flush=True)
                if rng.random() < 0.2:
                    stream.repeat()
            last_kill = time.monotonic()
            until(stream.ended, "the end of all jobs", _END_PATIENCE_SECONDS)
        until(lambda: not processes.training(os.getpid()) or None, "the end of all processes", 120)
        monitor.stop()
        seconds = time.monotonic() - last_kill
    orphans = _left_behind()
    steps = dict.fromkeys(stream.kinds, _EPOCHS * _STEPS_AN_EPOCH)
    violations = [
        *history.violations(database, stream.accepted, steps),
        *history.weight_differences(database, stream.kinds),
        *sorted(monitor.violations),
        *(f"left behind: {orphan}" for orphan in orphans),
    ]
    at_risk = history.seconds_at_risk(database)
    if not standin and at_risk > (limit := 60 * _SAVE_EVERY_MINUTES + _SAVING_SECONDS):
        violations.append(f"a crash cost {at_risk:.1f} s of training, more than {limit:.1f} s")
    counts = _counts(database)
    database.dispose()
    return {
        "seed": seed,
        "kills": len(kill_log),
        "kills_by_target": dict(Counter(kill["target"] for kill in kill_log)),
        "jobs": len(stream.accepted),
        **counts,
        "seconds_with_kills": round(last_kill - first_kill, 1),
        "seconds_until_all_ended": round(seconds, 1),
        "seconds": round(time.monotonic() - began, 1),
        "looks_for_two_live_epochs": monitor.checks,
        "most_seconds_of_work_lost": round(at_risk, 2),
        "violations": violations,
        "ray": "stand-in" if standin else "real",
        "store": "s3" if store else "folder",
        "settings": SETTINGS,
    }


def _left_behind() -> list[str]:
    """Return the command lines of all descendants that still run."""
    orphans = []
    for pid, words in processes.commands(os.getpid()).items():
        if "postgres" in words[0] or words[0].endswith("/weed") or not words[0]:
            continue  # Database and store belong to this process; zombies have ended.
        orphans.append(f"{pid}: {' '.join(words)[:200]}")
    return orphans


def _counts(database: Database) -> dict[str, Any]:
    with database.read() as session:
        attempts = session.execute(select(Attempt.state, func.count()).group_by(Attempt.state))
        return {
            "attempts": {str(state): int(count) for state, count in attempts},
            "checkpoints": session.scalar(select(func.count()).select_from(Checkpoint)),
            "events": session.scalar(select(func.count()).select_from(Event)),
        }


def _spec(kind: str, saves_by_time: bool) -> dict[str, Any]:
    """Return a small job; `kind` contains the number of ranks and the seed."""
    workers, seed = (int(word) for word in kind.split() if word.isdigit())
    by_time = {"checkpoints": {"every_minutes": _SAVE_EVERY_MINUTES}} if saves_by_time else {}
    return {
        **by_time,
        "name": kind,
        "dataset": DATASET,
        "backbone": {"name": "test_resnet", "image_size": 16, "stem": "standard"},
        "train": {
            "epochs": _EPOCHS,
            "batch_size": 8,
            "checkpoint_every_epochs": _EPOCHS if saves_by_time else 3,
            "seed": seed,
        },
        "evaluate": {"every_epochs": _EPOCHS},
        "resources": {"workers": workers, "cpus_per_worker": 1, "max_restarts": 1000},
    }


if __name__ == "__main__":
    raise SystemExit(main())
