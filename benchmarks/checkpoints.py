"""What a checkpoint costs the training: ``python -m benchmarks.checkpoints``.

The trainer's own steps and saves, of SimCLR on a ResNet-50. A reporter hashes the files and copies them to a
disk, as a worker does. Saves that hold the training until they are written alternate with saves that are
written beside it. The cost of the latter is the time that `save` holds the training, plus what the steps meanwhile
take beyond the median of steps with nothing beside them.
"""

import argparse
import hashlib
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine, write_results
from benchmarks.memory import synchronize
from dasl_core.data.ingest import ingest_folder
from dasl_core.spec import JobSpec, resolve
from dasl_core.train.build import RunFiles, build_trainer, open_run
from dasl_core.train.reporter import NullReporter
from dasl_core.train.trainer import Trainer

RESULTS = Path(__file__).parent / "results"


class Disk(NullReporter):
    """Stores the files of the last checkpoint in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bytes = 0

    def checkpoint(
        self, folder: Path, step: int, epoch: float, metrics: dict[str, float], final: bool
    ) -> None:
        """See `Reporter.checkpoint`."""
        self.bytes = 0
        for file in folder.iterdir():
            with file.open("rb") as content:
                hashlib.file_digest(content, "sha256")
            copied = shutil.copyfile(file, self.folder / file.name)
            with copied.open("rb") as content:
                os.fsync(content.fileno())
            self.bytes += file.stat().st_size


def main() -> int:
    """Measure, print a table and write the results; return 1 if saving beside the training costs more."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--saves", type=int, default=8, help="saves of each kind")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    before = machine("torch", "timm")
    with tempfile.TemporaryDirectory(prefix="dasl-checkpoints-") as name:
        result = measure(arguments, Path(name))
    table = Table("seconds", "held until written", "written beside")
    for key in ("held_seconds", "cost_seconds"):
        table.add_row(key, *(f"{result[kind][key]:.2f}" for kind in ("synchronous", "beside")))
    Console().print(table)
    settings = {key: value for key, value in vars(arguments).items() if key != "output"}
    output = arguments.output or RESULTS / f"checkpoints-{arguments.device}.json"
    write_results(output, {"machine": before, "settings": settings, "result": result})
    return 0 if result["within_limits"] else 1


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return medians of what saves of both kinds cost."""
    disk, device = Disk(folder / "stored"), torch.device(arguments.device)
    disk.folder.mkdir()
    run = trainer(arguments, device, disk, folder)
    try:
        checkpointer, batches = run.checkpointer, cycle(run.loader.epoch(0))
        run.method.train()

        def step() -> None:
            run.step(next(batches))

        def steps(number: int) -> list[float]:
            return [timed(step, device) for _ in range(number)]

        steps(3)  # the first ones select kernels and fill caches
        alone = steps(10)
        usual = statistics.median(alone)
        held: dict[str, list[float]] = {"synchronous": [], "beside": []}
        costs: dict[str, list[float]] = {"synchronous": [], "beside": []}
        for _ in range(arguments.saves):
            held["synchronous"].append(timed(lambda: checkpointer.save(required=True), device))
            costs["synchronous"].append(held["synchronous"][-1])
            step()
            held["beside"].append(timed(lambda: checkpointer.save(required=False), device))
            write = checkpointer._write
            assert write is not None, "not enough memory to write beside the training"
            slower = 0.0
            while not write.done():
                slower += timed(step, device) - usual
            costs["beside"].append(held["beside"][-1] + slower)
            step()
    finally:
        run.close()
    cost = {kind: statistics.median(costs[kind]) for kind in costs}
    kinds = {
        kind: {
            "held_seconds": round(statistics.median(held[kind]), 3),
            "cost_seconds": round(cost[kind], 3),
            "costs": [round(each, 3) for each in costs[kind]],
        }
        for kind in held
    }
    return kinds | {
        "step_seconds": round(usual, 4),
        "checkpoint_bytes": disk.bytes,
        "within_limits": cost["beside"] < cost["synchronous"],
    }


def timed(call: Callable[[], None], device: torch.device) -> float:
    """Return the time of a call, including its last kernel."""
    synchronize(device)
    began = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - began


def trainer(
    arguments: argparse.Namespace, device: torch.device, disk: Disk, folder: Path
) -> Trainer:
    """Return a trainer on noise images."""
    images = folder / "images"
    images.mkdir()
    random = np.random.default_rng(0)
    for number in range(arguments.batch_size * 8):
        pixels = random.integers(0, 256, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(images / f"{number:05d}.png")
    spec = JobSpec.model_validate(
        {
            "dataset": "noise",
            "backbone": {"name": arguments.backbone, "image_size": arguments.image_size},
            "train": {"epochs": 1000, "batch_size": arguments.batch_size},
            "evaluate": {"holdout": {"fraction": 0.1}},
            "resources": {"gpus_per_worker": int(device.type == "cuda")},
        }
    )
    index = ingest_folder(images)
    files = RunFiles(cache=folder / "cache", scratch=folder)
    return build_trainer(
        open_run(
            resolve(spec, index.facts()),
            index,
            disk,
            files,
            device=device,
            threads=arguments.threads,
        )
    )


if __name__ == "__main__":
    raise SystemExit(main())
