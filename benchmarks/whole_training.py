"""Whole trainings, from the start of a process to its end, against LightlyTrain: `python -m benchmarks.whole_training`.

SimCLR with a ResNet-18 on JPEGs of 500x375 pixels, with the same images, batch, views, head, optimizer, precision
(float32) and threads; in turn, each time as if for the first time: nothing is cached. In steady state means
after the first epoch. The model alone, on views that are there, tells what no loader can pass. LightlyTrain needs a
virtual environment of its own, because its dependencies are not ours: `--lightly-train PYTHON` names its Python.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import own_run
from benchmarks.gpu.own import model_alone, synthetic_views
from benchmarks.images import write_jpegs
from benchmarks.machine import machine, write_results
from benchmarks.own_run import SIMCLR_VIEWS
from benchmarks.processor_time import use_cores
from dasl_core.data.ingest import ingest_folder

RESULTS = Path(__file__).parent / "results" / "whole_training.json"
# Steps of the model alone; the first ones, in which memory is found, don't count.
_STEPS, _WARMUP = 15, 3


@dataclass(frozen=True)
class Case:
    """A training, and how much faster than LightlyTrain it must be: in all, and in steady state."""

    size: int
    epochs: int
    limit: float
    steady_limit: float


CASES = (Case(64, 4, 1.5, 1.5), Case(32, 8, 2.2, 1.15))


@dataclass(frozen=True)
class Timed:
    """Seconds of a whole training, and images per second after its first epoch."""

    seconds: float
    steady: float


def main() -> int:
    """Measure, print a table and write the results; return 1 if a limit is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.whole_training",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--lightly-train", type=Path, required=True, metavar="PYTHON")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2, help="cores, threads and data workers")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--sizes", type=int, nargs="+", default=[case.size for case in CASES])
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    before = machine("torch", "timm")
    use_cores(arguments.threads)
    rows = []
    with tempfile.TemporaryDirectory(prefix="dasl-whole-") as name:
        folder = Path(name)
        write_jpegs(folder / "images", arguments.images, 500, 375)
        for case in CASES:
            if case.size in arguments.sizes:
                rows.append(measure(case, arguments, folder))
                show(rows)
    kept = all(row["within_limits"] for row in rows)
    options = {
        name: value
        for name, value in vars(arguments).items()
        if name not in ("output", "lightly_train")
    }
    options["lightly_train"] = version_of(arguments.lightly_train)
    result = {
        "within_limits": kept,
        "load_average_after": [round(load, 2) for load in os.getloadavg()],
        "rows": rows,
    }
    write_results(arguments.output, {"machine": before, "settings": options, "result": result})
    return 0 if kept else 1


def measure(case: Case, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Train both in turn; the one that begins changes from round to round."""
    times: dict[str, list[Timed]] = {"ours": [], "lightly_train": []}
    trainings = {"ours": ours, "lightly_train": lightly_train}
    for number in range(arguments.rounds):
        for name in list(times)[:: -1 if number % 2 else 1]:
            scratch = folder / f"{case.size}-{name}-{number}"
            scratch.mkdir()
            times[name].append(trainings[name](case, arguments, folder / "images", scratch))
    median = {
        name: Timed(
            statistics.median(each.seconds for each in of_rounds),
            statistics.median(each.steady for each in of_rounds),
        )
        for name, of_rounds in times.items()
    }
    alone = of_model_alone(case, arguments, folder)
    ratio = median["lightly_train"].seconds / median["ours"].seconds
    steady_ratio = median["ours"].steady / median["lightly_train"].steady
    return {
        "size": case.size,
        "epochs": case.epochs,
        "seconds": {name: round(each.seconds, 1) for name, each in median.items()},
        "steady_images_per_second": {name: round(each.steady, 1) for name, each in median.items()},
        "model_alone_images_per_second": round(alone, 1),
        "steady_share_of_model_alone": round(median["ours"].steady / alone, 2),
        "seconds_rounds": {
            name: [round(each.seconds, 1) for each in of_rounds]
            for name, of_rounds in times.items()
        },
        "steady_rounds": {
            name: [round(each.steady, 1) for each in of_rounds] for name, of_rounds in times.items()
        },
        "ratio": round(ratio, 2),
        "limit": case.limit,
        "steady_ratio": round(steady_ratio, 2),
        "steady_limit": case.steady_limit,
        "within_limits": ratio >= case.limit and steady_ratio >= case.steady_limit,
    }


def ours(case: Case, arguments: argparse.Namespace, images: Path, scratch: Path) -> Timed:
    """Train with `dasl train`."""
    spec = {"dataset": "images"} | settings(case, arguments)
    (scratch / "spec.json").write_text(json.dumps(spec))
    command = [sys.executable, "-m", "dasl_core.standalone", str(scratch / "spec.json")]
    command += ["--data", str(images), "--output", str(scratch / "run")]
    seconds, _ = run(command, arguments.threads, scratch)
    first, *_, last = sorted((scratch / "run" / "checkpoints").iterdir())
    steps = arguments.images // arguments.batch_size * (case.epochs - 1)
    between = last.stat().st_mtime - first.stat().st_mtime
    return Timed(seconds, steps * arguments.batch_size / between)


def of_model_alone(case: Case, arguments: argparse.Namespace, folder: Path) -> float:
    """Return images per second of forward, loss, backward and update, on views that are there."""
    device = torch.device("cpu")
    trainer = own_run.build(
        settings(case, arguments),
        ingest_folder(folder / "images"),
        folder / f"{case.size}-alone",
        device=device,
        threads=arguments.threads,
    )
    try:
        step = model_alone(trainer, synthetic_views(trainer, device))
        seconds = []
        for _ in range(_STEPS):
            started = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - started)
    finally:
        trainer.close()
    return float(arguments.batch_size / statistics.median(seconds[_WARMUP:]))


def settings(case: Case, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of our spec that LightlyTrain has, too."""
    return {
        "backbone": {"name": "resnet18", "image_size": case.size, "stem": "standard"},
        "method": {"name": "simclr", "hidden_dim": 2048, "projection_dim": 128, "temperature": 0.1},
        "augment": SIMCLR_VIEWS,
        "train": {
            "epochs": case.epochs,
            "batch_size": arguments.batch_size,
            "checkpoint_every_epochs": 1,  # as LightlyTrain
            "precision": "fp32",
            "optimizer": {"name": "sgd"},
        },
        # LightlyTrain evaluates nothing.
        "evaluate": {"holdout": None, "every_epochs": case.epochs},
    }


def lightly_train(case: Case, arguments: argparse.Namespace, images: Path, scratch: Path) -> Timed:
    """Train with LightlyTrain, in its own Python."""
    script = Path(__file__).with_name("lightly_train_run.py")
    command = [str(arguments.lightly_train), str(script), "--data", str(images)]
    command += ["--output", str(scratch / "run"), "--epochs", str(case.epochs)]
    command += ["--size", str(case.size), "--batch-size", str(arguments.batch_size)]
    command += ["--threads", str(arguments.threads)]
    seconds, output = run(command, arguments.threads, scratch)
    later = json.loads(output.splitlines()[-1])
    steps = arguments.images // arguments.batch_size
    return Timed(seconds, len(later) * steps * arguments.batch_size / sum(later))


def run(command: list[str], threads: int, scratch: Path) -> tuple[float, str]:
    """Run a command with an empty cache; return its seconds and its output."""
    environment = os.environ | {
        "OMP_NUM_THREADS": str(threads),
        "DASL_CACHE_DIR": str(scratch / "cache"),
        "XDG_CACHE_HOME": str(scratch / "cache"),
    }
    started = time.perf_counter()
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if ended.returncode:
        raise SystemExit(
            f"{' '.join(command)} failed:\n{ended.stdout[-2000:]}{ended.stderr[-4000:]}"
        )
    return seconds, ended.stdout


def version_of(python: Path) -> str:
    """Return the version of LightlyTrain that a Python has."""
    code = (
        "from importlib.metadata import version; print(version('lightly-train'), version('torch'))"
    )
    output = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    package, torch = output.stdout.split()
    return f"{package} with torch {torch}"


def show(rows: list[dict[str, Any]]) -> None:
    """Print a table."""
    table = Table("pixels", "epochs", "", "ours", "LightlyTrain", "ratio", "limit", "model alone")
    for row in rows:
        for quantity, field, ratio, limit in (
            ("seconds, whole", "seconds", "ratio", "limit"),
            ("images/s, steady", "steady_images_per_second", "steady_ratio", "steady_limit"),
        ):
            figures = [str(row[field][name]) for name in ("ours", "lightly_train")]
            head = [str(row["size"]), str(row["epochs"]), quantity]
            alone = row["model_alone_images_per_second"] if ratio == "steady_ratio" else ""
            table.add_row(*head, *figures, f"{row[ratio]:.2f}", f"{row[limit]:g}", str(alone))
    Console().print(table)


if __name__ == "__main__":
    raise SystemExit(main())
