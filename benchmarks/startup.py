"""Time from submitting a job to its first training step: ``python -m benchmarks.startup``.

Alternates between a job in the service and a bare `TorchTrainer.fit()` with the same loop, spec and
settings, in its own driver process on the same local Ray. The difference is our share: the API, the
dispatcher, Ray's Jobs API and the work of the ranks before they train. It must be at most 3 s, and so must
the time from starting `dasl serve` to its first response on ``/livez``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine, write_results
from dasl_core.data.ingest import ingest_folder
from service.client import Client
from tests.support.polling import until
from tests.support.processes import commands, environment, free_port, part_of
from tests.support.running_service import serving, start, write_images
from workers.settings import RAY_SETTINGS

LIMIT_SECONDS = 3.0
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
        # Not measured: work of the first run only, such as decoding the images.
        spec = through_service(on, arguments.workers)[1]
        bare(on, spec)
        service_seconds, bare_seconds = [], []
        for _ in range(arguments.rounds):
            service_seconds.append(through_service(on, arguments.workers)[0])
            bare_seconds.append(bare(on, spec))
    result = {
        "workers": arguments.workers,
        "service_seconds": [round(seconds, 2) for seconds in service_seconds],
        "bare_seconds": [round(seconds, 2) for seconds in bare_seconds],
        "service_median_seconds": round(statistics.median(service_seconds), 2),
        "bare_median_seconds": round(statistics.median(bare_seconds), 2),
    }
    difference = statistics.median(service_seconds) - statistics.median(bare_seconds)
    result |= {
        "our_part_seconds": round(difference, 2),
        "livez_seconds": [round(seconds, 2) for seconds in livez_seconds],
        "limit_seconds": LIMIT_SECONDS,
        "within_limits": difference <= LIMIT_SECONDS
        and statistics.median(livez_seconds) <= LIMIT_SECONDS,
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
        process, _ = start(Path(folder), Path(folder) / "d", DASL_PORT=str(port))
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
    until_idle(on)
    return first - began, job.resolved


def bare(on: Service, spec: dict[str, Any]) -> float:
    """Return seconds from starting a bare driver to the first step."""
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
        variables = os.environ | RAY_SETTINGS | ray_access(on)
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
    until_idle(on)
    return first - began


@contextmanager
def served(folder: Path) -> Iterator[Service]:
    """Yield a `dasl serve` with its own home and a small registered data set."""
    images = folder / "images"
    write_images(images, 40)
    index = folder / "index.json.gz"
    ingest_folder(images).save(index)
    with (
        serving(folder, folder / "d", DASL_HEARTBEAT_SECONDS="2") as (pid, url, token),
        Client(url, token) as client,
    ):
        client.datasets.add(images, DATASET).wait(timeout=PATIENCE_SECONDS)
        yield Service(pid, client, folder, images, index)


def ray_access(on: Service) -> dict[str, str]:
    """Read the address and token of the service's Ray from its raylet (Linux)."""
    [(raylet, words)] = [
        (pid, words) for pid, words in commands(on.pid).items() if words[0].endswith("/raylet")
    ]
    options = dict(word.partition("=")[::2] for word in words)
    settings = {
        name: value for name, value in environment(raylet).items() if name.startswith("RAY_")
    }
    return settings | {"RAY_ADDRESS": options["--gcs-address"]}


def until_idle(on: Service) -> None:
    """Wait until all processes of the last run have ended."""
    until(
        lambda: not any(part_of(words) for words in commands(on.pid).values()) or None,
        "the end of the last run",
        PATIENCE_SECONDS,
        pause=0.05,
    )


def show(result: dict[str, Any]) -> None:
    """Print a table."""
    table = Table(title=f"Seconds to the first step, workers: {result['workers']}")
    for heading in ("", "median", "rounds"):
        table.add_column(heading, justify="left" if heading == "" else "right")
    for name in ("service", "bare"):
        rounds = "  ".join(f"{seconds:.1f}" for seconds in result[f"{name}_seconds"])
        table.add_row(name, f"{result[f'{name}_median_seconds']:.1f}", rounds)
    verdict = "ok" if result["within_limits"] else "TOO MUCH"
    table.add_row(
        "our part", f"{result['our_part_seconds']:.1f}", f"limit {LIMIT_SECONDS:g}  {verdict}"
    )
    rounds = "  ".join(f"{seconds:.1f}" for seconds in result["livez_seconds"])
    table.add_row("/livez", f"{statistics.median(result['livez_seconds']):.1f}", rounds)
    Console().print(table)


if __name__ == "__main__":
    raise SystemExit(main())
