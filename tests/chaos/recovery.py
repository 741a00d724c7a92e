"""Timed trials with real processes, of failures that must not lose a job.

    python -m tests.chaos.recovery                 # all trials
    python -m tests.chaos.recovery --only cancel   # one trial; replaces its earlier result

The limits are those that DASL promises: adopted within 45 s, canceled within 5 s for steps of 1 s, no
job and no step lost, no process left behind.
"""

import argparse
import itertools
import json
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import select

from benchmarks.machine import machine, write_results
from service.client import Client
from service.client.sync.models import Job
from service.db.leases import DISPATCHER_LEASE
from service.db.models import ClusterSnapshot, Lease, Metric
from service.db.session import Database
from tests.chaos.crashes import own_all_processes
from tests.chaos.deployment import DATASET, deployed
from tests.chaos.outage_clients import OutageClients
from tests.support import processes
from tests.support.databases import postgres_server
from tests.support.polling import PATIENCE_SECONDS, until
from tests.support.running_service import serving, write_images
from tests.support.stand_in.jobs_api import StandInRay

RESULTS = Path(__file__).parent / "results" / "recovery.json"
ADOPTED_WITHIN_SECONDS = 45.0
CANCELLED_WITHIN_SECONDS = 5.0
OUTAGES = 3


def main() -> int:
    """Run the trials and write the results; return 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=TRIALS, action="append")
    parser.add_argument(
        "--standin",
        action="store_true",
        help=f"replace Ray and training, see tests.support.stand_in; only for {' and '.join(STANDIN)}",
    )
    parser.add_argument(
        "--lease-seconds",
        type=float,
        help="the dispatcher's lease in the trial `dispatcher`; default: that of the product",
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    own_all_processes()
    results = json.loads(options.output.read_text()) if options.output.exists() else {}
    trials = TRIALS | {"dispatcher": partial(dispatcher, lease_seconds=options.lease_seconds)}
    for name in options.only or TRIALS:
        before = machine("torch", "ray", "sqlalchemy")
        # Ray's environment variables may change the results.
        before |= {name: value for name, value in os.environ.items() if name[:4] == "RAY_"}
        with tempfile.TemporaryDirectory(prefix="dasl-recovery-") as folder:
            result = trials[name](Path(folder), options.standin and name in STANDIN)
        orphans = [
            " ".join(words)[:200] for words in processes.commands(os.getpid()).values() if words[0]
        ]
        ray = "stand-in" if options.standin and name in STANDIN else "real"
        result |= {"ray": ray, "left_behind": orphans, "ok": result["ok"] and not orphans}
        print(json.dumps({name: result}, indent=2), flush=True)
        results[name] = {"machine": before, "result": result}
        write_results(options.output, results)
    return 0 if all(results[name]["result"]["ok"] for name in options.only or TRIALS) else 1


def ray_head(folder: Path, standin: bool) -> dict[str, Any]:
    """Kill GCS and raylet of `dasl serve` while two jobs run; both must finish."""
    write_images(folder / "images", 40)
    with serving(folder, folder / "d") as (pid, url, token), Client(url, token) as client:
        client.datasets.add(folder / "images", DATASET).wait(timeout=PATIENCE_SECONDS)
        jobs = [client.jobs.submit(small_spec(epochs=400, seed=seed)) for seed in range(2)]
        until(
            lambda: all(client.jobs.checkpoints(job.id) for job in jobs) or None,
            "a checkpoint of each",
        )
        steps = [last_step(client, job) for job in jobs]
        before = set(processes.commands(pid))
        killed = time.monotonic()
        for child, words in processes.commands(pid).items():
            if words[0].endswith(("/gcs_server", "/raylet")):
                os.kill(child, signal.SIGKILL)
        until(lambda: not before & set(processes.commands(pid)) or None, "the end of the old Ray")
        gone_seconds = time.monotonic() - killed
        until(
            lambda: all((client.jobs.get(job.id).attempt or 0) > 1 for job in jobs) or None,
            "new attempts",
        )
        again_seconds = time.monotonic() - killed
        ended = [job.wait(timeout=2 * PATIENCE_SECONDS, poll=0.5) for job in jobs]
        seconds = time.monotonic() - killed
        until(lambda: not processes.training(pid) or None, "the end of all drivers and ranks")
    return {
        "reached_steps": steps,
        "old_ray_gone_seconds": round(gone_seconds, 1),
        "new_attempts_seconds": round(again_seconds, 1),
        "both_finished_seconds": round(seconds, 1),
        "statuses": [job.status for job in ended],
        "attempts": [job.attempt for job in ended],
        "ok": all(job.status == "succeeded" for job in ended),
    }


def dispatcher(
    folder: Path, standin: bool, *, lease_seconds: float | None = None
) -> dict[str, Any]:
    """Kill the dispatcher, by default with the product's lease; the job continues and is adopted."""
    url = f"sqlite:///{folder / 'dasl.db'}"
    settings = {} if lease_seconds is None else {"DASL_LEASE_SECONDS": f"{lease_seconds:g}"}
    with (
        deployed(folder, url, cpus=2, settings=settings, ray=_ray(folder, standin)) as deployment,
        deployment.client() as client,
    ):
        database = Database(url)
        job = client.jobs.submit(small_spec(epochs=100_000))
        until(lambda: last_step(client, job) or None, "the first step")
        holder = _lease_holder(database)
        at_kill = last_step(client, job)
        killed = time.time()
        deployment.kill("dispatcher")
        deployment.start("dispatcher")
        until(
            lambda: (_lease_holder(database) != holder and _last_round(database) > killed) or None,
            "a round of the new dispatcher",
        )
        adopted_seconds = time.time() - killed
        at_adoption = last_step(client, job)
        until(lambda: last_step(client, job) > at_adoption or None, "more steps")
        job = client.jobs.get(job.id)
        status, attempt, restarts = job.status, job.attempt, job.restarts
        job.cancel()
        until(lambda: client.jobs.get(job.id).done or None, "the end")
        unbroken = _is_unbroken(database, job.id)
        database.dispose()
    return {
        "adopted_seconds": round(adopted_seconds, 1),
        "limit_seconds": ADOPTED_WITHIN_SECONDS,
        "steps_while_there_was_none": at_adoption - at_kill,
        "status": status,
        "attempt": attempt,
        "restarts": restarts,
        "every_step_once_and_in_order": unbroken,
        "ok": adopted_seconds <= ADOPTED_WITHIN_SECONDS
        and (status, attempt, restarts) == ("running", 1, 0)
        and unbroken,
    }


def database(folder: Path, standin: bool) -> dict[str, Any]:
    """Stop PostgreSQL immediately and start it again, during requests and a training."""
    with (
        postgres_server() as server,
        deployed(folder, server.url, cpus=2, settings={}, ray=_ray(folder, standin)) as deployment,
        deployment.client() as client,
    ):
        job = client.jobs.submit(small_spec(epochs=400, workers=2))
        until(lambda: last_step(client, job) or None, "the first step")
        with OutageClients(deployment.url, deployment.token, small_spec(epochs=1)) as clients:
            down_seconds = [_restart(server.stop_at_once, server.start) for _ in range(OUTAGES)]
        survived = {name: process.poll() is None for name, process in deployment.processes.items()}
        ended = job.wait(timeout=2 * PATIENCE_SECONDS, poll=0.5)
        lost = clients.lost(client)
    return {
        "outages_seconds": down_seconds,
        **clients.counts(),
        "lost_jobs": lost,
        "not_cured": clients.not_cured,
        "survived": survived,
        "job": {"status": ended.status, "attempt": ended.attempt, "restarts": ended.restarts},
        "ok": not lost
        and not clients.not_cured
        and all(survived.values())
        and (ended.status, ended.attempt) == ("succeeded", 1),
    }


def cancel(folder: Path, standin: bool) -> dict[str, Any]:
    """Cancel a job of two ranks whose steps take about a second."""
    url = f"sqlite:///{folder / 'dasl.db'}"
    with deployed(folder, url, cpus=2, settings={}) as deployment, deployment.client() as client:
        spec = small_spec(epochs=10_000, workers=2)
        spec["backbone"] = {"name": "resnet18", "image_size": 16}
        spec["train"] |= {"batch_size": 32, "checkpoint_every_epochs": 10_000}
        job = client.jobs.submit(spec)
        until(lambda: last_step(client, job) >= 5 or None, "five steps")
        requested = time.time()
        job.cancel()
        until(lambda: client.jobs.get(job.id).done or None, "the end")
        ended_seconds = time.time() - requested
        until(lambda: not _ranks() or None, "the end of all ranks")
        gone_seconds = time.time() - requested
        times = client.jobs.metrics(job.id, name="loss", max_points=10_000).time
        [checkpoint] = client.jobs.checkpoints(job.id)
        job = client.jobs.get(job.id)
    assert checkpoint.created_at is not None
    step_seconds = statistics.median(b - a for a, b in itertools.pairwise(times))
    stopped_seconds = max(0.0, times[-1] - requested)
    return {
        "step_seconds": round(step_seconds, 2),
        "last_step_seconds": round(stopped_seconds, 2),
        "limit_seconds": CANCELLED_WITHIN_SECONDS,
        "saved_seconds": round(checkpoint.created_at.timestamp() - requested, 2),
        "cancelled_seconds": round(ended_seconds, 2),
        "ranks_gone_seconds": round(gone_seconds, 2),
        "status": job.status,
        "saved_step_is_the_last": checkpoint.step == len(times),
        # The step in which the request arrives, and the one in which it is broadcast, are finished.
        "ok": stopped_seconds <= CANCELLED_WITHIN_SECONDS * max(1.0, step_seconds)
        and job.status == "cancelled"
        and checkpoint.step == len(times),
    }


TRIALS: dict[str, Callable[[Path, bool], dict[str, Any]]] = {
    "cancel": cancel,
    "dispatcher": dispatcher,
    "ray_head": ray_head,
    "database": database,
}


# Trials that concern only the control plane.
STANDIN = ("dispatcher", "database")


def small_spec(*, epochs: int, workers: int = 1, seed: int = 0) -> dict[str, Any]:
    """Return a spec with steps of milliseconds, four per epoch, and occasional checkpoints."""
    return {
        "name": "chaos",
        "dataset": DATASET,
        "backbone": {"name": "test_resnet", "image_size": 16, "stem": "standard"},
        "train": {
            "epochs": epochs,
            "batch_size": 8,
            "checkpoint_every_epochs": min(epochs, 50),
            "seed": seed,
        },
        "evaluate": {"every_epochs": epochs},
        "resources": {"workers": workers, "cpus_per_worker": 1},
    }


def last_step(client: Client, job: Job) -> int:
    """Return the last step whose loss was reported; 0 before the first."""
    return max(client.jobs.metrics(job.id, name="loss", max_points=10_000).step, default=0)


def _restart(stop: Callable[[], None], start: Callable[[], None]) -> float:
    """Wait 5 s, cause an outage of about 2 s, and wait again; return its duration."""
    time.sleep(5)
    began = time.monotonic()
    stop()
    time.sleep(2)
    start()
    seconds = time.monotonic() - began
    time.sleep(5)
    return round(seconds, 1)


def _ray(folder: Path, standin: bool) -> StandInRay | None:
    return StandInRay(folder / "ray.log", 2) if standin else None


def _ranks() -> list[int]:
    return [p.pid for p in processes.training(os.getpid()) if p.part == "rank"]


def _lease_holder(database: Database) -> str:
    with database.read() as session:
        return session.get_one(Lease, DISPATCHER_LEASE).holder


def _last_round(database: Database) -> float:
    """Return the time of the dispatcher's last poll of Ray, with which a round starts."""
    with database.read() as session:
        return session.get_one(ClusterSnapshot, 1).at.timestamp()


def _is_unbroken(database: Database, job_id: str) -> bool:
    """Whether each step was trained once, by one attempt, in order."""
    with database.read() as session:
        rows = session.execute(
            select(Metric.step, Metric.attempt, Metric.time)
            .where(Metric.job_id == job_id, Metric.name == "loss")
            .order_by(Metric.step)
        ).all()
    steps, attempts, times = zip(*rows, strict=True)
    return (
        list(steps) == list(range(1, len(steps) + 1))
        and set(attempts) == {1}
        and list(times) == sorted(times)
    )


if __name__ == "__main__":
    raise SystemExit(main())
