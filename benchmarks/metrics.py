"""Time and memory of the evaluation metrics: ``python -m benchmarks.metrics``.

Each case runs in its own process, which creates features, runs a small case first (to start threads
and load code) and then measures the case itself: seconds, and the increase of peak memory beyond the
features. This increase must not grow with the number of features, so that a bank of 1.3 M x 2048 needs
little more than its own 10 GiB; the limit is 512 MiB.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.machine import machine, write_results
from benchmarks.memory import in_fresh_process, peak_bytes, synchronize
from dasl_core import evaluate

LIMIT_BYTES = 512 << 20
RESULTS = Path(__file__).parent / "results" / "metrics.json"
Size = tuple[int, int, int]
Step = Callable[[], object]


def main() -> int:
    """Run, print a table and write the results; return 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--only", choices=CASES, help="run one case; write no results")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--alone", choices=CASES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone:
        torch.set_num_threads(arguments.threads)
        print(json.dumps(measure(arguments.alone, torch.device(arguments.device))))
        return 0

    cases = [arguments.only] if arguments.only else list(CASES)
    results = [
        in_fresh_process("benchmarks.metrics", name, arguments, return_memory=False)
        for name in cases
    ]
    show(results)
    if not arguments.only:
        about = machine("torch") | {"threads": arguments.threads, "device": arguments.device}
        if arguments.device != "cpu":
            about["device"] = torch.cuda.get_device_name()
        write_results(arguments.output, {"machine": about, "results": results})
    return 0 if all(result["within_limits"] for result in results) else 1


def clouds(rows: int, width: int, classes: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return features (rows, width) around a center for each class, and the classes."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(rows) % classes
    centers = torch.randn(classes, width, generator=generator)
    x = torch.randn(rows, width, generator=generator)
    for start in range(0, rows, 4096):  # in blocks: a second full matrix would raise peak memory
        x[start : start + 4096].add_(centers[y[start : start + 4096]], alpha=0.3)
    return x.to(device), y.to(device)


def knn_case(size: Size, device: torch.device) -> Step:
    x, y = clouds(*size, device)
    queries, labels = x[::40].clone(), y[::40]
    return lambda: evaluate.knn_accuracy(x, y, queries, labels)


def recall_case(size: Size, device: torch.device) -> Step:
    x, y = clouds(*size, device)
    return lambda: evaluate.recall_at_k(x, y, [1, 10, 100, 1000])


def linear_case(size: Size, device: torch.device) -> Step:
    x, y = clouds(*size, device)
    return lambda: evaluate.linear_probe(x, y, x[::10], y[::10], epochs=10)


def rank_case(size: Size, device: torch.device) -> Step:
    x, _ = clouds(*size, device)
    return lambda: evaluate.effective_rank(x)


def distances_case(size: Size, device: torch.device) -> Step:
    x, y = clouds(*size, device)
    return lambda: evaluate.inter_class_distances(x, y)


def uniformity_case(size: Size, device: torch.device) -> Step:
    x, _ = clouds(*size, device)
    return lambda: evaluate.uniformity(x)


def std_case(size: Size, device: torch.device) -> Step:
    x, _ = clouds(*size, device)
    return lambda: evaluate.dimension_std(x)


def clustering_case(size: Size, device: torch.device) -> Step:
    x, y = clouds(*size, device)
    return lambda: evaluate.clustering_metrics(x, y)


CASES: dict[str, tuple[Callable[[Size, torch.device], Step], Size, str]] = {
    "knn_accuracy": (knn_case, (200_000, 512, 100), "5,000 queries, k = 20"),
    "recall_at_k": (recall_case, (50_000, 128, 10_000), "K = 1, 10, 100, 1000"),
    "linear_probe": (linear_case, (50_000, 512, 100), "7 rates, 10 epochs, batch 256"),
    "effective_rank": (rank_case, (200_000, 512, 1), ""),
    "dimension_std": (std_case, (200_000, 512, 1), ""),
    "inter_class_distances": (distances_case, (4_096, 2_048, 4_096), "as a job does"),
    "uniformity": (uniformity_case, (50_000, 128, 1), ""),
    "clustering_metrics": (clustering_case, (10_000, 128, 100), "10 starts of k-means"),
}


def measure(name: str, device: torch.device) -> dict[str, Any]:
    """Measure one case, in a fresh process."""
    make, size, settings = CASES[name]
    make((400, 64, 4), device)()  # start torch's threads and load its code
    step = make(size, device)
    synchronize(device)
    before = peak_bytes(device, reset=True)
    start, busy = time.perf_counter(), time.process_time()
    step()
    synchronize(device)
    seconds, busy = time.perf_counter() - start, time.process_time() - busy
    extra = peak_bytes(device) - before
    rows, width, classes = size
    return {
        "name": name,
        "rows": rows,
        "width": width,
        "classes": classes,
        "settings": settings,
        "seconds": round(seconds, 3),
        "cpu_seconds": round(busy, 3),  # of all threads: an upper bound for an idle machine
        "peak_extra_bytes": extra,
        "limit_bytes": LIMIT_BYTES,
        "within_limits": extra < LIMIT_BYTES,
    }


def show(results: list[dict[str, Any]]) -> None:
    table = Table(title="Evaluation metrics, float32")
    for heading in (
        "metric",
        "features",
        "settings",
        "seconds",
        "CPU seconds",
        "extra memory",
        "limit",
        "",
    ):
        left = heading in ("metric", "settings")
        table.add_column(heading, justify="left" if left else "right")
    for result in results:
        table.add_row(
            result["name"],
            f"{result['rows']:,} x {result['width']:,}",
            result["settings"],
            f"{result['seconds']:.1f}",
            f"{result['cpu_seconds']:.1f}",
            f"{result['peak_extra_bytes'] / 2**20:.0f} MiB",
            f"{result['limit_bytes'] / 2**20:.0f} MiB",
            "ok" if result["within_limits"] else "TOO MUCH",
        )
    Console().print(table)


if __name__ == "__main__":
    raise SystemExit(main())
