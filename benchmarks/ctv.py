"""Time and memory of the L1 CTV norm, forward and backward: ``python -m benchmarks.ctv``.

The norm is defined over all H (H - 1)/2 pairs of columns. It must take less than 0.5 s on two cores
at H = 8192, h = 128 in float32, and less extra memory than 20 matrices of that size, where an
(H, H, h) tensor would be 8192 of them.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.machine import machine, write_results
from benchmarks.memory import in_fresh_process, peak_bytes
from dasl_core.regularizers import ctv_norm, difference_alignment

Step = Callable[[], None]

NUM_COLUMNS = 8192
WIDTH = 128
TIME_LIMIT_SECONDS = 0.5
MEMORY_LIMIT_MATRICES = 20
REPEATS = 9
CPU = torch.device("cpu")
RESULTS = Path(__file__).parent / "results" / "ctv.json"


def main() -> int:
    """Run, print a table and write the results; return 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--alone", choices=CASES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.alone:
        print(json.dumps({"peak_extra_bytes": peak_extra_bytes(arguments.alone)}))
        return 0

    results = [measure(name, arguments) for name in CASES]
    show(results)
    environment = machine("torch") | {"threads": arguments.threads}
    write_results(arguments.output, {"machine": environment, "results": results})
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


def measure(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    step = CASES[name](NUM_COLUMNS)
    step()  # start torch's threads
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds)
    extra = in_fresh_process("benchmarks.ctv", name, arguments)["peak_extra_bytes"]
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


def peak_extra_bytes(name: str) -> int:
    """Return the increase of peak resident memory in the first full-size step (Linux)."""
    step = CASES[name](NUM_COLUMNS)
    CASES[name](64)()  # start torch's threads and load its code
    before = peak_bytes(CPU, reset=True)
    step()
    return peak_bytes(CPU) - before


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
