"""Does DASL learn what other libraries learn? ``python -m benchmarks.parity --fashion DIR --peers PYTHON``.

The same recipe through DASL, lightly 1.6 and stable-pretraining 0.1.8 (`recipe.py`): images, network (timm's
`test_resnet`), views, heads, optimizer (AdamW, no decay of biases and norms), schedule, batch and epochs, in
float32. Each is written as a user of that library would (`dasl_run.py`, `lightly_run.py`, `stable_run.py`):
with its own losses, views, schedules, and heads where it has them. One evaluation measures the weights of all
(`data.py`), of the student where there is a teacher: k-NN on the test images of Fashion-MNIST, and R@1 of emoji
of classes that were not trained on. Runs with different seeds are independent: two one-sided tests
(`equivalence.py`) say "equivalent", "different" or "undecided".

What differs because the libraries differ:

* Random numbers, and so initial weights, order and views. Jitter is applied in a random order by torchvision,
  always in the same one by DASL, whose hue turns the chroma of YIQ; views of DASL are not rounded to 8 bits
  after each operation.
* BYOL's loss: the sum over both directions in DASL, as in the paper, their mean in stable-pretraining, and half
  of that mean in lightly; AdamW does not depend on the factor. Barlow Twins of stable-pretraining divides by the
  standard deviation of N - 1.
* DINO: batch norm over both views together in DASL and stable-pretraining, over each in lightly; the center
  starts at 0, in stable-pretraining as the first batch's mean. (For other methods all have batch norm over each view.)
  stable-pretraining has no head with normalized weights, so `stable_run.py` builds it.
* Teachers: their momentum grows in each step, in stable-pretraining in each epoch. lightly's examples update the
  teacher before the step, the others after it.
* SimCLR's last batch norm: lightly's learns a shift.
* Warm-up starts at 0 in DASL and lightly, at 1 % of the rate in stable-pretraining; the schedules differ by at
  most a step.

`--peers` is the Python of a virtual environment with lightly 1.6, stable-pretraining 0.1.8 and timm (as
`whole_training`, whose peer has one of its own). The results file keeps finished runs, which are not repeated.
"""

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.learning import FASHION
from benchmarks.machine import machine, write_results
from benchmarks.parity import data, recipe
from benchmarks.parity.data import Images
from benchmarks.parity.equivalence import compare, seeds_needed
from benchmarks.parity.jobs import DONE, Job
from benchmarks.parity.recipe import METHODS, RECIPES

RESULTS = Path(__file__).parents[1] / "results" / "parity.json"
MODULES = {"DASL": "dasl_run", "lightly": "lightly_run", "stable-pretraining": "stable_run"}
PILOT = 5
VERSIONS = "import importlib.metadata as m, json; print(json.dumps({n: m.version(n) for n in %r}))"


def main() -> int:
    """Run what is missing and print the table; return 1 if a comparison says "different"."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.parity",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--peers", type=Path, metavar="PYTHON")
    parser.add_argument("--show", action="store_true", help="only print what has been run")
    parser.add_argument("--fashion", type=Path, default=FASHION)
    parser.add_argument("--datasets", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--libraries", nargs="+", choices=MODULES, default=list(MODULES))
    parser.add_argument(
        "--seeds", type=int, default=PILOT, help="of the pilot, which decides on more where it may"
    )
    parser.add_argument("--side-by-side", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    kept: dict[str, Any] = {"runs": {}}
    if arguments.output.exists():
        kept = json.loads(arguments.output.read_text())
    if arguments.show:
        return show(kept)
    if arguments.peers is None:
        parser.error("--peers: is missing. Name the Python that has the other libraries.")
    with tempfile.TemporaryDirectory(prefix="dasl-parity-") as name:
        for dataset in arguments.datasets:
            images = data.emoji() if dataset == "emoji" else data.fashion(arguments.fashion)
            data.write(dataset, images[0], Path(name))
            kept.setdefault("raw", {})[dataset] = round(data.evaluate(dataset, *images, None), 2)
            # The pilot first: it decides how many seeds there must be.
            for seeds in range(1, RECIPES[dataset].most_seeds + 1):
                methods = [
                    method
                    for method in RECIPES[dataset].methods
                    if method in arguments.methods
                    and seeds <= max(arguments.seeds, needed(kept["runs"], dataset, method))
                ]
                run_missing(kept, dataset, methods, seeds - 1, images, Path(name), arguments)
    return show(kept)


def needed(runs: Mapping[str, Any], dataset: str, method: str) -> int:
    """Return the seeds that each library needs, by the deviations of a pilot's runs; 0 before it."""
    r = RECIPES[dataset]
    deviations = [
        statistics.stdev(points)
        for library in MODULES
        if len(points := points_of(runs, dataset, method, library)[:PILOT]) == PILOT
    ]
    if len(deviations) < len(MODULES):
        return 0
    pooled = statistics.fmean(each**2 for each in deviations) ** 0.5
    return seeds_needed(pooled, r.margin, r.most_seeds)


def run_missing(
    kept: dict[str, Any],
    dataset: str,
    methods: list[str],
    seed: int,
    images: tuple[Images, Images],
    folder: Path,
    arguments: argparse.Namespace,
) -> None:
    """Run the methods with one seed through each library; write a library's results as it ends."""
    torch.set_num_threads(1)
    one_at_a_time = Lock()

    def train(library: str, jobs: dict[str, Job]) -> None:
        file = folder / f"{library}.json"
        file.write_text(json.dumps([dataclasses.asdict(job) for job in jobs.values()]))
        python = sys.executable if library == "DASL" else str(arguments.peers)
        command = [python, "-m", f"benchmarks.parity.{MODULES[library]}", str(file)]
        root = Path(__file__).parents[2]
        with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith(DONE):
                    with one_at_a_time:
                        record(library, jobs[line.removeprefix(DONE).strip()])
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)

    def record(library: str, job: Job) -> None:
        result = torch.load(job.weights)
        key = key_of(dataset, job.method, library, seed)
        kept["runs"][key] = {
            "settings": settings(dataset),
            "percent": round(data.evaluate(dataset, *images, result["weights"]), 3),
            "processor_seconds": round(result["seconds"], 1),
        }
        print(key, kept["runs"][key]["percent"], kept["runs"][key]["processor_seconds"], flush=True)
        kept["machine"] = machine("torch", "timm") | versions(arguments.peers)
        write_results(arguments.output, kept)

    with ThreadPoolExecutor(arguments.side_by_side) as pool:
        started = []
        for library in arguments.libraries:
            jobs = {
                method: Job(dataset, method, seed, str(folder), f"{folder}/{library}-{method}.pt")
                for method in methods
                if kept["runs"].get(key_of(dataset, method, library, seed), {}).get("settings")
                != settings(dataset)
            }
            if jobs:
                started.append(pool.submit(train, library, jobs))
        for done in started:
            done.result()


def key_of(dataset: str, method: str, library: str, seed: int) -> str:
    """Return the name of a run."""
    return f"{dataset}/{method}/{library}/{seed}"


def settings(dataset: str) -> dict[str, Any]:
    """Return what a result depends on, as JSON reads it: another recipe makes it void."""
    shared = {name: value for name, value in vars(recipe).items() if name.isupper()}
    of_all = {name: value for name, value in shared.items() if isinstance(value, int | float)}
    described = dataclasses.asdict(RECIPES[dataset])
    for name in ("margin", "most_seeds", "methods"):
        del described[name]
    written: dict[str, Any] = json.loads(json.dumps(described | of_all))
    return written


def points_of(runs: Mapping[str, Any], dataset: str, method: str, library: str) -> list[float]:
    """Return the results of a library's seeds with the present recipe."""
    return [
        run["percent"]
        for seed in range(RECIPES[dataset].most_seeds)
        if (run := runs.get(key_of(dataset, method, library, seed)))
        and run["settings"] == settings(dataset)
    ]


def versions(python: Path) -> dict[str, str]:
    """Return the versions of the libraries."""
    code = VERSIONS % (["lightly", "stable-pretraining"],)
    run = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    found: dict[str, str] = json.loads(run.stdout)
    return found


def show(kept: dict[str, Any]) -> int:
    """Print means and intervals; return 1 if a comparison says "different"."""
    table = Table(title="Percent: mean and deviation of seeds; difference with its 90 % interval")
    for heading in ("data", "method", "library", "seeds", "mean", "sd", "DASL minus it", "margin"):
        table.add_column(heading)
    table.add_column("verdict")
    failed = False
    for dataset, r in RECIPES.items():
        for method in r.methods:
            ours = points_of(kept["runs"], dataset, method, "DASL")
            for library in MODULES:
                points = points_of(kept["runs"], dataset, method, library)
                if not points:
                    continue
                sd = f"{statistics.stdev(points):.2f}" if len(points) > 1 else ""
                row = [
                    dataset,
                    method,
                    library,
                    str(len(points)),
                    f"{statistics.fmean(points):.2f}",
                ]
                if library == "DASL" or not ours:
                    table.add_row(*row, sd)
                    continue
                found = compare(ours, points, r.margin)
                failed |= found.verdict == "different"
                interval = f"{found.difference:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"
                table.add_row(*row, sd, interval, f"{r.margin:g}", found.verdict)
    Console(width=120).print(table)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
