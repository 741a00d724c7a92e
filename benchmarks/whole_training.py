"""Whole trainings, from the start of a process to its end, against LightlyTrain: `python -m benchmarks.whole_training`.

SimCLR with a ResNet-18 on JPEGs of 500x375 pixels, with the same images, batch, views, head, optimizer, precision
and threads, and LightlyTrain's own number of workers; in turn, each time as if for the first time: nothing is cached. In
steady state means after the first epoch. The model alone, on views that are there, with the allocator of the run, tells
what no loader can pass. LightlyTrain needs a virtual environment of its own with `lightly-train` and `timm`, because its
dependencies are not ours: `--lightly-train PYTHON` names its Python.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, fields
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
from benchmarks.processor_time import processor_seconds, use_cores
from dasl_core.data.ingest import ingest_folder

RESULTS = Path(__file__).parent / "results" / "whole_training.json"
# Our names of precisions, and LightlyTrain's.
LIGHTLY_PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed", "auto": "auto"}
# Steps of the model alone; the first ones, in which memory is found, don't count.
_STEPS, _WARMUP = 15, 3


@dataclass(frozen=True)
class Case:
    """A training, and what must hold.

    Attributes:
        limit: LightlyTrain's processor time by ours, at least.
        share: our images per second in steady state by those of the model alone, at least.
    """

    size: int
    epochs: int
    limit: float
    share: float


CASES = (Case(64, 4, 1.6, 0.92), Case(32, 8, 2.4, 0.85))


@dataclass(frozen=True)
class Timed:
    """Seconds and processor seconds of a whole training, and images per second after its first epoch."""

    seconds: float
    processor: float
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
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument(
        "--precision",
        choices=LIGHTLY_PRECISIONS,
        default="fp32",
        help="of both; auto: each one's default",
    )
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
            *(
                statistics.median(getattr(each, field.name) for each in of_rounds)
                for field in fields(Timed)
            )
        )
        for name, of_rounds in times.items()
    }
    alone = of_model_alone(case, arguments, folder)
    own, other = median["ours"], median["lightly_train"]
    ratio, share = other.processor / own.processor, own.steady / alone
    return {
        "size": case.size,
        "epochs": case.epochs,
        "processor_ratio": round(ratio, 2),
        "limit": case.limit,
        "seconds_ratio": round(other.seconds / own.seconds, 2),
        "steady_ratio": round(own.steady / other.steady, 2),
        "model_alone_images_per_second": round(alone, 1),
        "share_of_model_alone": round(share, 2),
        "share_limit": case.share,
        "medians": {name: rounded(each) for name, each in median.items()},
        "rounds": {
            name: [rounded(each) for each in of_rounds] for name, of_rounds in times.items()
        },
        "within_limits": ratio >= case.limit and share >= case.share,
    }


def rounded(times: Timed) -> dict[str, float]:
    """Return the figures of a training to a tenth."""
    return {name: round(value, 1) for name, value in vars(times).items()}


def ours(case: Case, arguments: argparse.Namespace, images: Path, scratch: Path) -> Timed:
    """Train with `dasl train`."""
    spec = {"dataset": "images"} | settings(case, arguments)
    (scratch / "spec.json").write_text(json.dumps(spec))
    command = [sys.executable, "-m", "dasl_core.standalone", str(scratch / "spec.json")]
    command += ["--data", str(images), "--output", str(scratch / "run")]
    seconds, processor, _ = run(command, arguments.threads, scratch)
    first, *_, last = sorted((scratch / "run" / "checkpoints").iterdir())
    steps = arguments.images // arguments.batch_size * (case.epochs - 1)
    between = last.stat().st_mtime - first.stat().st_mtime
    return Timed(seconds, processor, steps * arguments.batch_size / between)


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
            "precision": arguments.precision,
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
    command += ["--precision", LIGHTLY_PRECISIONS[arguments.precision]]
    seconds, processor, output = run(command, arguments.threads, scratch)
    later = json.loads(output.splitlines()[-1])
    steps = arguments.images // arguments.batch_size
    return Timed(seconds, processor, len(later) * steps * arguments.batch_size / sum(later))


def run(command: list[str], threads: int, scratch: Path) -> tuple[float, float, str]:
    """Run a command with an empty cache; return its seconds, its processor seconds and its output."""
    environment = os.environ | {
        "OMP_NUM_THREADS": str(threads),
        "DASL_CACHE_DIR": str(scratch / "cache"),
        "XDG_CACHE_HOME": str(scratch / "cache"),
    }
    before, started = processor_seconds(), time.perf_counter()
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    seconds, processor = time.perf_counter() - started, processor_seconds() - before
    if ended.returncode:
        raise SystemExit(
            f"{' '.join(command)} failed:\n{ended.stdout[-2000:]}{ended.stderr[-4000:]}"
        )
    return seconds, processor, ended.stdout


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
    table = Table("pixels", "epochs", "", "ours", "LightlyTrain", "ratio", "limit")
    for row in rows:
        own, other = (row["medians"][name] for name in ("ours", "lightly_train"))
        alone, share = row["model_alone_images_per_second"], row["share_of_model_alone"]
        head = [str(row["size"]), str(row["epochs"])]
        for quantity, field, ratio, limit in (
            ("processor seconds", "processor", row["processor_ratio"], f"{row['limit']:g}"),
            ("seconds", "seconds", row["seconds_ratio"], ""),
            ("images/s, steady", "steady", row["steady_ratio"], ""),
        ):
            figures = [str(own[field]), str(other[field]), f"{ratio:.2f}"]
            table.add_row(*head, quantity, *figures, limit)
        figures = [str(own["steady"]), str(alone), f"{share:.2f}"]
        table.add_row(
            *head, "images/s, steady, and the model alone", *figures, f"{row['share_limit']:g}"
        )
    Console().print(table)


if __name__ == "__main__":
    raise SystemExit(main())
