"""Time from submitting a job to its first training step: ``python -m benchmarks.startup``.

Alternates between a job in the service and a bare `TorchTrainer.fit()` with the same loop, spec and
settings, in its own driver process on a second Ray, which `ray start --head` started with its defaults.
A start through the service must be faster: the first job after the start of the service, and less than
half as long for each later one, once the node's standby processes are ready again. The time from starting
`dasl serve` to its first response on ``/livez`` must be at most 3 s.
"""

import argparse
import json
import os
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine, write_results
from dasl_core.data.ingest import ingest_folder
from service.client import Client
from tests.support.polling import until
from tests.support.processes import commands, environment, free_port, part_of
from tests.support.running_service import serving, start, write_images
from workers.settings import RAY_SETTINGS
from workers.standby_keeper import build_pools, waiting

LIVEZ_LIMIT_SECONDS = 3.0
WARM_LIMIT = 0.5
RESULTS = Path(__file__).parent / "results" / "startup.json"
DATASET = "pictures"
PATIENCE_SECONDS = 240.0


@dataclass(frozen=True)
class Service:
    """A running `dasl serve` with a data set."""

    pid: int
    client: Client
    home: Path
    images: Path
    index: Path


def main() -> int:
    """Run, print a table and write the results; return 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    before = machine("torch", "ray")
    livez_seconds = [livez() for _ in range(arguments.rounds)]
    with tempfile.TemporaryDirectory(prefix="dasl-bench-") as folder, served(Path(folder)) as on:
        first_seconds, spec = through_service(on, arguments.workers)
        with plain_ray(Path(folder)) as access:
            # Not measured: work of the first run only, such as reading files from the disk.
            bare(on, access, spec)
            service_seconds, bare_seconds = [], []
            for _ in range(arguments.rounds):
                until_ready(on)
                service_seconds.append(through_service(on, arguments.workers)[0])
                until_ready(on)
                bare_seconds.append(bare(on, access, spec))
    service_median = statistics.median(service_seconds)
    bare_median = statistics.median(bare_seconds)
    livez_median = statistics.median(livez_seconds)
    result = {
        "workers": arguments.workers,
        "first_seconds": round(first_seconds, 2),
        "service_seconds": [round(seconds, 2) for seconds in service_seconds],
        "bare_seconds": [round(seconds, 2) for seconds in bare_seconds],
        "service_median_seconds": round(service_median, 2),
        "bare_median_seconds": round(bare_median, 2),
        "service_to_bare": round(service_median / bare_median, 3),
        "first_to_bare": round(first_seconds / bare_median, 3),
        "livez_seconds": [round(seconds, 2) for seconds in livez_seconds],
        "load_average_after": [round(load, 2) for load in os.getloadavg()],
        "within_limits": service_median < WARM_LIMIT * bare_median
        and first_seconds < bare_median
        and livez_median <= LIVEZ_LIMIT_SECONDS,
    }
    show(result)
    write_results(arguments.output, {"machine": before, "result": result})
    return 0 if result["within_limits"] else 1


def livez() -> float:
    """Return seconds from starting `dasl serve` to its first response; stop it before Ray is up."""
    port = free_port()

    def answers() -> bool | None:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/livez").is_success or None
        except httpx.TransportError:
            return None

    with tempfile.TemporaryDirectory(prefix="dasl-bench-") as folder:
        began = time.monotonic()
        process, _ = start(
            Path(folder), Path(folder) / "d", DASL_PORT=str(port), DASL_STANDBY_RANKS="1"
        )
        try:
            until(answers, "the first response", PATIENCE_SECONDS, pause=0.05)
            return time.monotonic() - began
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


def through_service(on: Service, workers: int) -> tuple[float, dict[str, Any]]:
    """Return seconds from submission to the first step, and the resolved spec."""
    spec = {
        "name": "startup",
        "dataset": DATASET,
        "backbone": {"name": "test_resnet", "image_size": 32},
        "dar": {},
        # One step per epoch: its metrics are reported at once.
        "train": {"epochs": 1, "batch_size": 32},
        "resources": {"workers": workers},
    }
    began = time.time()
    job = on.client.jobs.submit(spec).wait(timeout=PATIENCE_SECONDS, poll=0.5)
    first = float(on.client.jobs.metrics(job.id).time[0])
    assert job.resolved is not None, "the service resolves what it runs"
    until_idle(on.pid)
    return first - began, job.resolved


def bare(on: Service, access: dict[str, str], spec: dict[str, Any]) -> float:
    """Return seconds from starting a bare driver on the plain Ray to the first step."""
    with tempfile.TemporaryDirectory(dir=on.home) as name:
        folder = Path(name)
        task = {
            "spec": spec,
            "index": str(on.index),
            "cache": str(on.home / "cache" / "bare"),
            "storage": str(folder / "storage"),
            "first_step": str(folder / "first-step.json"),
        }
        (folder / "task.json").write_text(json.dumps(task))
        variables = plain_environment() | RAY_SETTINGS | access
        with open(on.home / "bare.log", "w", encoding="utf-8") as log:
            began = time.time()
            try:
                subprocess.run(
                    [sys.executable, "-m", "benchmarks.bare_trainer", str(folder / "task.json")],
                    env=variables,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    timeout=PATIENCE_SECONDS,
                    check=True,
                )
            except subprocess.SubprocessError as error:
                raise RuntimeError((on.home / "bare.log").read_text()) from error
        first = float(json.loads((folder / "first-step.json").read_text()))
    until_idle(os.getpid())
    return first - began


@contextmanager
def served(folder: Path) -> Iterator[Service]:
    """Yield a `dasl serve` with its own home and a small registered data set."""
    images = folder / "images"
    write_images(images, 40)
    index = folder / "index.safetensors"
    ingest_folder(images).save(index)
    with (
        # The tests' service has no standby processes.
        serving(folder, folder / "d", DASL_HEARTBEAT_SECONDS="2", DASL_STANDBY_RANKS="1") as (
            pid,
            url,
            token,
        ),
        Client(url, token) as client,
    ):
        client.datasets.add(images, DATASET).wait(timeout=PATIENCE_SECONDS)
        yield Service(pid, client, folder, images, index)


@contextmanager
def plain_ray(folder: Path) -> Iterator[dict[str, str]]:
    """Start a Ray with its default settings, without any of ours; yield the variables of its drivers."""
    token = secrets.token_hex(32)
    ports = {
        f"--{name}={free_port()}"
        for name in (
            *("port", "dashboard-port", "dashboard-agent-listen-port"),
            *("ray-client-server-port", "metrics-export-port"),
        )
    }
    ray = Path(sysconfig.get_path("scripts")) / "ray"
    session = tempfile.mkdtemp(prefix="bare-", dir="/tmp")
    with open(folder / "plain-ray.log", "wb") as log:
        guard = subprocess.Popen(
            [
                *(sys.executable, "-m", "service.embedded.subreaper", "2"),
                *(str(ray), "start", "--head", "--block", f"--temp-dir={session}", *ports),
            ],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=plain_environment() | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token},
            start_new_session=True,
        )
    try:
        yield until(lambda: ray_access(guard.pid), "the plain Ray", PATIENCE_SECONDS)
    finally:
        assert guard.stdin is not None
        guard.stdin.close()
        guard.wait()
        shutil.rmtree(session, ignore_errors=True)


def plain_environment() -> dict[str, str]:
    """Return the environment of this process without settings of Ray and DASL."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "DASL_"))}


def ray_access(ancestor: int) -> dict[str, str] | None:
    """Read the address and token of a Ray from its raylet (Linux); `None` before that has started."""
    for pid, words in commands(ancestor).items():
        if words[0].endswith("/raylet"):
            options = dict(word.partition("=")[::2] for word in words)
            settings = {k: v for k, v in environment(pid).items() if k.startswith("RAY_AUTH_")}
            return settings | {"RAY_ADDRESS": options["--gcs-address"]}
    return None


def until_idle(ancestor: int) -> None:
    """Wait until all processes of the last run have ended."""
    until(
        lambda: not any(part_of(words) for words in commands(ancestor).values()) or None,
        "the end of the last run",
        PATIENCE_SECONDS,
        pause=0.05,
    )


def until_ready(on: Service) -> None:
    """Wait until the standby processes are waiting again, and have done their imports."""
    [raylet] = [pid for pid, words in commands(on.pid).items() if words[0].endswith("/raylet")]
    pools = build_pools(1, is_head=True)

    def complete() -> bool | None:
        process = psutil.Process(raylet)
        return all(waiting(process, pool.variables) >= pool.size for pool in pools) or None

    until(complete, "the standby processes", PATIENCE_SECONDS)
    until(lambda: standby_cpu(raylet) < 0.05 or None, "the imports", PATIENCE_SECONDS, pause=0)


def standby_cpu(raylet: int) -> float:
    """Return the share of a CPU that the idle workers use, measured for a second."""
    idle = [p for p in psutil.Process(raylet).children() if p.cmdline()[:1] == ["ray::IDLE"]]
    used = sum(sum(p.cpu_times()[:2]) for p in idle)
    time.sleep(1)
    return float(sum(sum(p.cpu_times()[:2]) for p in idle) - used)


def show(result: dict[str, Any]) -> None:
    """Print a table."""
    table = Table(title=f"Seconds to the first step, workers: {result['workers']}")
    for heading in ("", "median", "rounds"):
        table.add_column(heading, justify="left" if heading == "" else "right")
    table.add_row("first job", f"{result['first_seconds']:.1f}", "")
    for name, label in (("service", "later jobs"), ("bare", "bare"), ("livez", "/livez")):
        rounds = "  ".join(f"{seconds:.1f}" for seconds in result[f"{name}_seconds"])
        median = statistics.median(result[f"{name}_seconds"])
        table.add_row(label, f"{median:.1f}", rounds)
    table.add_row("first to bare", f"{result['first_to_bare']:.2f}", "limit 1")
    table.add_row("later to bare", f"{result['service_to_bare']:.2f}", f"limit {WARM_LIMIT:g}")
    table.add_row("limits", "ok" if result["within_limits"] else "exceeded")
    Console().print(table)


if __name__ == "__main__":
    raise SystemExit(main())
