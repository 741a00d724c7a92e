"""Time and memory of the L1 CTV norm, forward and backward: ``python -m benchmarks.ctv``.

The norm is defined over all H (H - 1)/2 pairs of columns. It must take less than 0.5 s on two cores
at H = 8192, h = 128 in float32, and less extra memory than 20 matrices of that size, where an
(H, H, h) tensor would be 8192 of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.machine import machine
from dasl_core.regularizers import ctv_norm, difference_alignment

Step = Callable[[], None]

NUM_COLUMNS = 8192
WIDTH = 128
TIME_LIMIT_SECONDS = 0.5
MEMORY_LIMIT_MATRICES = 20
REPEATS = 9
RESULTS = Path(__file__).parent / "results" / "ctv.json"


def main() -> int:
    """Run, print a table and write the results; return 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--peak-of", choices=CASES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.peak_of:
        print(peak_extra_bytes(arguments.peak_of))
        return 0

    results = [measure(name, arguments.threads) for name in CASES]
    show(results)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(
        json.dumps(
            {"machine": machine("torch") | {"threads": arguments.threads}, "results": results},
            indent=2,
        )
        + "\n"
    )
    return 0 if all(result["within_limits"] for result in results) else 1


def random_columns(num_columns: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(num_columns, WIDTH, generator=generator).abs()


def random_case(num_columns: int) -> Step:
    return norm_step(random_columns(num_columns))


def ties_case(num_columns: int) -> Step:
    return norm_step(random_columns(num_columns).mul_(8).round_().div_(8))


def norm_step(columns: Tensor) -> Step:
    columns.requires_grad_()

    def step() -> None:
        columns.grad = None
        ctv_norm(columns).backward()

    return step


def regularizer_case(num_columns: int) -> Step:
    """Compute all of DAR on two views of H/2 images: chain, normalization, differences, norm."""
    embeddings = random_columns(num_columns).requires_grad_()
    labels = torch.arange(num_columns // 2).repeat(2)

    def step() -> None:
        embeddings.grad = None
        generator = torch.Generator().manual_seed(0)
        difference_alignment(embeddings, labels, generator=generator).backward()

    return step


CASES: dict[str, Callable[[int], Step]] = {
    "ctv_norm, random": random_case,
    "ctv_norm, many ties": ties_case,
    "difference_alignment": regularizer_case,
}


def measure(name: str, threads: int) -> dict[str, Any]:
    step = CASES[name](NUM_COLUMNS)
    step()  # start torch's threads
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds)
    extra = peak_in_fresh_process(name, threads)
    limit = MEMORY_LIMIT_MATRICES * NUM_COLUMNS * WIDTH * 4
    return {
        "name": name,
        "columns": NUM_COLUMNS,
        "width": WIDTH,
        "median_seconds": round(median, 4),
        "fastest_seconds": round(min(seconds), 4),
        "slowest_seconds": round(max(seconds), 4),
        "limit_seconds": TIME_LIMIT_SECONDS,
        "peak_extra_bytes": extra,
        "limit_bytes": limit,
        "within_limits": median < TIME_LIMIT_SECONDS and extra < limit,
    }


def peak_in_fresh_process(name: str, threads: int) -> int:
    """Measure in a fresh process, because freed memory that the allocator keeps would hide growth."""
    command = [sys.executable, "-m", "benchmarks.ctv", "--threads", str(threads), "--peak-of", name]
    # Allocate tensors directly from the operating system and return them to it.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return int(finished.stdout)


def peak_extra_bytes(name: str) -> int:
    """Return the increase of peak resident memory in the first full-size step (Linux)."""
    step = CASES[name](NUM_COLUMNS)
    CASES[name](64)()  # start torch's threads and load its code
    before = memory_bytes("VmRSS")
    step()
    return memory_bytes("VmHWM") - before


def memory_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def show(results: list[dict[str, Any]]) -> None:
    table = Table(title=f"L1 CTV norm, forward + backward, H = {NUM_COLUMNS}, h = {WIDTH}, float32")
    for heading in ("case", "median", "limit", "extra memory", "limit", ""):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for result in results:
        table.add_row(
            result["name"],
            f"{result['median_seconds'] * 1000:.0f} ms",
            f"{result['limit_seconds'] * 1000:.0f} ms",
            f"{result['peak_extra_bytes'] / 2**20:.0f} MiB",
            f"{result['limit_bytes'] / 2**20:.0f} MiB",
            "ok" if result["within_limits"] else "TOO MUCH",
        )
    Console().print(table)


if __name__ == "__main__":
    raise SystemExit(main())
