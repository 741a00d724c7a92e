"""Time of a training step compared with lightly: ``python -m benchmarks.steps``.

Compares SimCLR, BYOL and DINO with the parts of lightly, assembled as in the examples of its
documentation: the same timm network, views, head widths, optimizer and precision, in one process,
alternating between a step of each. Ours is the trainer's real step, with its metrics, NaN guard and
schedules; only the views are prepared in advance.

Reports the median of the ratios of adjacent steps, and its 95 % confidence interval (order statistics,
without an assumption about the distribution of times). The whole interval must be within the limit, so
that noise alone cannot pass.
"""

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table

from benchmarks import lightly_steps
from benchmarks.machine import machine, write_results
from benchmarks.memory import synchronize
from dasl_core.data.ingest import ingest_folder
from dasl_core.spec import JobSpec, resolve
from dasl_core.train.build import RunFiles, build_trainer, open_run
from dasl_core.train.reporter import NullReporter
from dasl_core.train.trainer import Trainer
from dasl_core.train.views import ViewMaker

LIMIT = 1.0
RESULTS = Path(__file__).parent / "results"
LR, MOMENTUM, WEIGHT_DECAY = 0.06, 0.9, 5e-4
# Hidden width, width of the bottleneck, and outputs.
DINO_HEAD = (512, 64, 2048)
LOCAL_CROPS = 6


def main() -> int:
    """Time all methods, print a table and write the results; return 1 if ours is slower anywhere."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--methods", nargs="+", choices=lightly_steps.STEPS, default=list(lightly_steps.STEPS)
    )
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    before = machine("torch", "timm", "lightly")
    rows = [measure(method, arguments) for method in arguments.methods]
    show(rows)
    output = arguments.output or RESULTS / f"steps-{arguments.device}.json"
    settings = {name: value for name, value in vars(arguments).items() if name != "output"}
    result = {
        "limit": LIMIT,
        "rows": rows,
        "within_limits": all(r["interval"][1] <= LIMIT for r in rows),
    }
    write_results(output, {"machine": before, "settings": settings, "result": result})
    return 0 if result["within_limits"] else 1


def measure(method: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the median time of a step of both, and the median ratio of adjacent steps."""
    device = torch.device(arguments.device)
    with tempfile.TemporaryDirectory(prefix="dasl-steps-") as name:
        run = our_run(method, arguments, device, Path(name))
        try:
            assert isinstance(run.prefetcher.maker, ViewMaker), "the views of the spec"
            views = [
                torch.randn(arguments.batch_size, 3, view.image_size, view.image_size).to(
                    device, memory_format=run.prefetcher.maker.layout
                )
                for view in run.prefetcher.maker.views
            ]
            batch = next(run.loader.epoch(0))
            run.prefetcher.maker.make = lambda batch, step: views  # type: ignore[method-assign]
            run.method.train()
            theirs = lightly_steps.STEPS[method](lightly_setup(arguments, device))
            ours_seconds, theirs_seconds = [], []
            for round_number in range(arguments.rounds + 2):
                # The first one finds the caches of the other, so they alternate.
                if round_number % 2:
                    other = timed(lambda: theirs(views), device)
                    ours = timed(lambda: run.step(batch), device)
                else:
                    ours = timed(lambda: run.step(batch), device)
                    other = timed(lambda: theirs(views), device)
                if round_number >= 2:  # the first rounds select kernels and fill caches
                    ours_seconds.append(ours)
                    theirs_seconds.append(other)
        finally:
            run.close()
    ratios = [a / b for a, b in zip(ours_seconds, theirs_seconds, strict=True)]
    return {
        "method": method,
        "ours_seconds": round(statistics.median(ours_seconds), 4),
        "lightly_seconds": round(statistics.median(theirs_seconds), 4),
        "ratio": round(statistics.median(ratios), 3),
        "interval": [round(ratio, 3) for ratio in median_interval(ratios)],
        "ratios": [round(ratio, 3) for ratio in ratios],
    }


def median_interval(values: list[float]) -> tuple[float, float]:
    """Return a confidence interval (at least 95 %) of the median.

    Its ends are the k-th smallest and the k-th largest value, because the number of values below the
    median is binomially distributed.
    """
    count = len(values)
    k, outside = 0, 2 * 0.5**count
    while outside <= 0.05 and k < count // 2:
        k += 1
        outside += 2 * math.comb(count, k) * 0.5**count
    ordered = sorted(values)
    return ordered[max(k - 1, 0)], ordered[count - max(k, 1)]


def timed(step: Callable[[], None], device: torch.device) -> float:
    """Return the time of a step, including its last kernel."""
    synchronize(device)
    began = time.perf_counter()
    step()
    synchronize(device)
    return time.perf_counter() - began


def our_run(
    method: str, arguments: argparse.Namespace, device: torch.device, folder: Path
) -> Trainer:
    """Return a trainer on a few noise images."""
    images = folder / "images"
    images.mkdir()
    random = np.random.default_rng(0)
    count, size = arguments.batch_size * 40, arguments.image_size
    for number in range(count):
        pixels = random.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(images / f"{number:05d}.png")
    method_settings: dict[str, dict[str, Any]] = {
        "simclr": {"projection_dim": 128, "temperature": 0.5},
        "byol": {"hidden_dim": 1024, "projection_dim": 256},
        "dino": {
            "hidden_dim": DINO_HEAD[0],
            "bottleneck_dim": DINO_HEAD[1],
            "out_dim": DINO_HEAD[2],
            "local_crops": LOCAL_CROPS,
        },
    }
    spec = JobSpec.model_validate(
        {
            "dataset": "noise",
            "method": {"name": method} | method_settings[method],
            "backbone": {
                "name": arguments.backbone,
                "image_size": size,
                "stem": "standard",
            },
            "train": {
                "epochs": 100,
                "batch_size": arguments.batch_size,
                "precision": arguments.precision,
                "clip": None,
                "optimizer": {"name": "sgd", "lr": LR, "weight_decay": WEIGHT_DECAY},
            },
            "evaluate": {"holdout": {"fraction": 0.01}},
            "resources": {"gpus_per_worker": int(device.type == "cuda")},
        }
    )
    index = ingest_folder(images)
    files = RunFiles(cache=folder / "cache", scratch=folder)
    return build_trainer(
        open_run(
            resolve(spec, index.facts()),
            index,
            NullReporter(),
            files,
            device=device,
            threads=arguments.threads,
        )
    )


def lightly_setup(arguments: argparse.Namespace, device: torch.device) -> lightly_steps.Setup:
    """Return the same settings for lightly's parts."""
    optimizer = partial(torch.optim.SGD, lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    return lightly_steps.Setup(
        backbone=arguments.backbone,
        image_size=arguments.image_size,
        device=device,
        half=arguments.precision == "bf16",
        channels_last=True,
        optimizer=optimizer,
        dino_head=DINO_HEAD,
    )


def show(rows: list[dict[str, Any]]) -> None:
    """Print a table."""
    table = Table(title=f"Seconds of a step; at most {LIMIT:g} times lightly's")
    for heading in ("method", "ours", "lightly", "ratio", "95 %"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for row in rows:
        table.add_row(
            row["method"],
            f"{row['ours_seconds']:.3f}",
            f"{row['lightly_seconds']:.3f}",
            f"{row['ratio']:.3f}",
            "{:.3f} to {:.3f}".format(*row["interval"]),
        )
    Console().print(table)


if __name__ == "__main__":
    raise SystemExit(main())
