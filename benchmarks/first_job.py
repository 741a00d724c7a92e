"""Time of a first job on 60 images, with the spec of `dasl init`: ``python -m benchmarks.first_job``.

Starts `dasl serve` in a new home, registers images, writes a spec for them with `dasl init`, and submits it: photographs
of 500x375 pixels, and emoji of 64 pixels of twelve classes. On two cores each must take at most 45 seconds, from the
start of the service to the verdict.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from benchmarks.images import write_jpegs
from benchmarks.machine import machine, write_results
from examples.emoji import unpack_emoji
from service.client import Client
from tests.support.running_service import serving

RESULTS = Path(__file__).parent / "results" / "first_job.json"
IMAGES = 60
KINDS = ("photographs", "emoji")
LIMIT_SECONDS = 45.0
PATIENCE_SECONDS = 1800.0


def main() -> int:
    """Run the jobs, print a table and write the results; return 1 if the limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    before = machine("torch", "ray")
    results = []
    for kind in KINDS:
        with tempfile.TemporaryDirectory(prefix="dasl-bench-") as folder:
            results.append({"images": kind, **measure(Path(folder), kind)})
    table = Table(title=f"First job on {IMAGES} images, seconds")
    table.add_column("step")
    for result in results:
        table.add_column(result["images"], justify="right")
    for step in results[0]["seconds"]:
        table.add_row(step, *(f"{result['seconds'][step]:.1f}" for result in results))
    Console().print(table)
    write_results(arguments.output, {"machine": before, "limit": LIMIT_SECONDS, "results": results})
    return (
        0
        if all(result["seconds"]["all, to the verdict"] <= LIMIT_SECONDS for result in results)
        else 1
    )


def write_images(folder: Path, kind: str) -> Path:
    """Write the images, emoji in a folder for each class, and return their folder."""
    images = folder / kind
    if kind == "photographs":
        write_jpegs(images, IMAGES, 500, 375)
        return images
    whole = unpack_emoji(folder / "whole", classes=12)
    for file in sorted(path for path in whole.rglob("*") if path.is_file())[:IMAGES]:
        target = images / file.relative_to(whole)
        target.parent.mkdir(parents=True, exist_ok=True)
        file.rename(target)
    return images


def measure(folder: Path, kind: str) -> dict[str, Any]:
    """Return the seconds of each step, and what the job trained."""
    images, spec_file = write_images(folder, kind), folder / "spec.yaml"
    seconds: dict[str, float] = {}
    began = time.monotonic()

    def lap(step: str) -> None:
        nonlocal began
        now = time.monotonic()
        seconds[step], began = round(now - began, 1), now

    # The tests' service has no standby processes, and more frequent heartbeats; these are the defaults.
    running = serving(folder, folder / "home", DASL_STANDBY_RANKS="1", DASL_HEARTBEAT_SECONDS="2")
    with running as (_, url, token), Client(url, token) as on:
        lap("serve, to its token")
        on.datasets.add(images, kind).wait(timeout=PATIENCE_SECONDS)
        lap("datasets add")
        command = (sys.executable, "-m", "service.cli", "init", str(images), "-o", str(spec_file))
        subprocess.run(command, check=True, capture_output=True)
        lap("init")
        job = on.jobs.submit(yaml.safe_load(spec_file.read_text(encoding="utf-8")))
        until = time.monotonic() + PATIENCE_SECONDS
        while job.verdict is None and not job.done and time.monotonic() < until:
            time.sleep(0.5)
            job = on.jobs.get(job.id)
        lap("job, to the verdict")
        seconds["all, to the verdict"] = round(sum(seconds.values()), 1)
        job = job.wait(timeout=PATIENCE_SECONDS, poll=0.5)
        lap("job, from the verdict to its end")
    assert job.status == "succeeded", job.error
    assert job.resolved is not None
    assert job.created_at is not None
    assert job.started_at is not None
    return {
        "seconds": seconds,
        "seconds_in_queue": round((job.started_at - job.created_at).total_seconds(), 1),
        "steps": job.progress.step if job.progress else None,
        "verdict": job.verdict.message if job.verdict else None,
        "spec": {part: job.resolved[part] for part in ("method", "backbone", "train", "resources")},
    }


if __name__ == "__main__":
    raise SystemExit(main())
