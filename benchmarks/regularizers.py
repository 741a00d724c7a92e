"""What the regularizers cost beside a SimCLR step: ``python -m benchmarks.regularizers``.

Two views of a global batch of 4,096 images give 8,192 embeddings of 128 numbers. On these, DAR and SEC
are timed, forward and backward, with their peak of extra memory; beside them a SimCLR step of a
ResNet-50 at 224 pixels, of a batch that the machine can hold, times the number of such batches in
4,096. The contrastive loss itself, which grows with the square of the batch, is thereby counted too
low, so the shares come out too high rather than too low. DAR (l1, chain) and SEC may take 1 % of the
step, and no case more than 20 matrices of the embeddings' size.

With W processes the step is W times shorter and the regularizers, which every process computes on the
whole batch, are not: multiply the shares by W.

The clusters of cluster-used DAR (k = 1,000 among 100,000 rows, the start and 3 iterations) are found
once an epoch, not in the step: they have no limit here.
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

import timm
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.ctv import memory_bytes
from benchmarks.machine import machine
from dasl_core.clustering import cluster
from dasl_core.methods.simclr import nt_xent
from dasl_core.models.heads import projection_head
from dasl_core.regularizers import SphericalEmbeddingConstraint, difference_alignment

Step = Callable[[], object]

GLOBAL_BATCH = 4096
VIEWS = 2
WIDTH = 128
IMAGE_SIZE = 224
LIMIT_SHARE = 0.01
LIMIT_MATRICES = 20
REPEATS, FEWEST_REPEATS = 9, 5
ENOUGH_SECONDS = 10.0
BANK_ROWS, CLUSTERS, ITERATIONS = 100_000, 1000, 3
RESULTS = Path(__file__).parent / "results"


def main() -> int:
    """Run, print a table, write the results; 1 when a limit is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument(
        "--batch", type=int, default=None, help="images of the measured step (8, on a GPU 256)"
    )
    parser.add_argument("--output", type=Path, default=None)
    parser.add_argument("--alone", choices=[*CASES, "step"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    batch = arguments.batch or (256 if device.type == "cuda" else 8)
    if arguments.alone:
        torch.set_num_threads(arguments.threads)
        print(json.dumps(measure(arguments.alone, device, batch)))
        return 0

    step = in_fresh_process("step", arguments)
    # The fastest: a step that something else on the machine slowed would make shares look small.
    whole = step["fastest_seconds"] * GLOBAL_BATCH / batch
    about_step = {"batch": batch, "image_size": IMAGE_SIZE, **step, "seconds_at_4096": whole}
    limit = LIMIT_MATRICES * VIEWS * GLOBAL_BATCH * WIDTH * 4
    results = []
    for name in CASES:
        figures = in_fresh_process(name, arguments) | {"name": name}
        within = True
        if name != "clusters":
            figures["share_of_step"] = figures["median_seconds"] / whole
            figures["limit_bytes"] = limit
            within = figures["peak_extra_bytes"] < limit
        if name in LIMITED:
            figures["limit_share"] = LIMIT_SHARE
            within = within and figures["share_of_step"] < LIMIT_SHARE
        results.append(figures | {"within_limits": within})
    show(about_step, results)
    about = machine("torch", "timm") | {"threads": arguments.threads, "device": arguments.device}
    if device.type == "cuda":
        about["device"] = torch.cuda.get_device_name()
    name = "regularizers.json" if device.type == "cpu" else f"regularizers_{device.type}.json"
    output = arguments.output or RESULTS / name
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(
        json.dumps({"machine": about, "step": about_step, "results": results}, indent=2) + "\n"
    )
    return 0 if all(result["within_limits"] for result in results) else 1


def embeddings_of(images: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Random embeddings of two views, and the images' numbers."""
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(VIEWS * images, WIDTH, generator=generator).to(device)
    return embeddings.requires_grad_(), torch.arange(images).repeat(VIEWS)


def alignment_case(images: int, device: torch.device, **options: Any) -> Step:
    embeddings, labels = embeddings_of(images, device)

    def step() -> None:
        embeddings.grad = None
        generator = torch.Generator().manual_seed(0)
        difference_alignment(embeddings, labels, generator=generator, **options).backward()

    return step


def dar_case(images: int, device: torch.device) -> Step:
    return alignment_case(images, device)


def unbiased_case(images: int, device: torch.device) -> Step:
    return alignment_case(images, device, estimator="unbiased")


def distance_case(images: int, device: torch.device) -> Step:
    return alignment_case(images, device, difference="distance")


def l2_case(images: int, device: torch.device) -> Step:
    return alignment_case(images, device, norm="l2")


def few_labels_case(images: int, device: torch.device) -> Step:
    """The chain when many neighbours in a random order share their label."""
    embeddings, _ = embeddings_of(images, device)
    labels = torch.randint(20, (images,), generator=torch.Generator().manual_seed(1)).repeat(VIEWS)

    def step() -> None:
        embeddings.grad = None
        generator = torch.Generator().manual_seed(0)
        difference_alignment(embeddings, labels, generator=generator).backward()

    return step


def sec_case(images: int, device: torch.device) -> Step:
    embeddings, _ = embeddings_of(images, device)
    constraint = SphericalEmbeddingConstraint().to(device)

    def step() -> None:
        embeddings.grad = None
        constraint(embeddings).backward()

    return step


def clusters_case(images: int, device: torch.device) -> Step:
    rows = BANK_ROWS if images == GLOBAL_BATCH else 100
    bank = torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(0)).to(device)
    return lambda: cluster(bank, min(CLUSTERS, rows), max_iterations=ITERATIONS)


CASES: dict[str, Callable[[int, torch.device], Step]] = {
    "dar": dar_case,
    "dar, 20 labels": few_labels_case,
    "dar, unbiased": unbiased_case,
    "dar, distance": distance_case,
    "dar, l2": l2_case,
    "sec": sec_case,
    "clusters": clusters_case,
}
LIMITED = ("dar", "dar, 20 labels", "sec")


def network_step(batch: int, device: torch.device) -> Step:
    """Forward, NT-Xent, backward and update of SimCLR on given views."""
    torch.manual_seed(0)
    backbone: nn.Module = timm.create_model("resnet50", num_classes=0)
    network = nn.Sequential(backbone, projection_head(2048, 2048, WIDTH)).to(device)
    images = torch.randn(VIEWS * batch, 3, IMAGE_SIZE, IMAGE_SIZE, device=device)
    if device.type == "cuda":
        network = network.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            embeddings = network(images)
        nt_xent(embeddings.unflatten(0, (VIEWS, batch)), 0.2).backward()
        optimizer.step()

    return step


def measure(name: str, device: torch.device, batch: int) -> dict[str, Any]:
    """One case, in a process where nothing ran before."""
    if name == "step":
        step, extra = network_step(batch, device), None
        step()
    else:
        CASES[name](64, device)()  # starts torch's threads, loads its code
        step = CASES[name](GLOBAL_BATCH, device)
        before = memory(device, reset=True)
        step()
        extra = memory(device) - before
    seconds: list[float] = []
    while len(seconds) < FEWEST_REPEATS or (
        len(seconds) < REPEATS and sum(seconds) < ENOUGH_SECONDS
    ):
        synchronize(device)
        start = time.perf_counter()
        step()
        synchronize(device)
        seconds.append(time.perf_counter() - start)
    figures = {
        "median_seconds": statistics.median(seconds),
        "fastest_seconds": min(seconds),
        "slowest_seconds": max(seconds),
        "repeats": len(seconds),
    }
    return figures if extra is None else figures | {"peak_extra_bytes": extra}


def in_fresh_process(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Freed memory that an earlier case keeps would hide the growth of the next."""
    command = [sys.executable, "-m", "benchmarks.regularizers", "--alone", name]
    command += ["--threads", str(arguments.threads), "--device", arguments.device]
    if arguments.batch:
        command += ["--batch", str(arguments.batch)]
    # Tensors go straight to and from the operating system.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"} if name != "step" else None
    finished = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    figures: dict[str, Any] = json.loads(finished.stdout)
    return figures


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def memory(device: torch.device, *, reset: bool = False) -> int:
    """Peak of memory so far in bytes; that of now, from which a new peak starts, after a reset."""
    if device.type == "cuda":
        synchronize(device)
        if reset:
            torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.max_memory_allocated(device)
    return memory_bytes("VmRSS" if reset else "VmHWM")


def show(step: dict[str, Any], results: list[dict[str, Any]]) -> None:
    table = Table(
        title=f"{VIEWS} views of {GLOBAL_BATCH} images, h = {WIDTH}, forward + backward, float32; "
        f"SimCLR step {step['seconds_at_4096']:.3g} s ({step['fastest_seconds']:.3g} s at batch "
        f"{step['batch']})"
    )
    for heading in ("case", "median", "share of step", "extra memory", "limit", ""):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for result in results:
        has_share = "share_of_step" in result
        table.add_row(
            result["name"],
            f"{result['median_seconds'] * 1000:.1f} ms",
            f"{result['share_of_step']:.4%}" if has_share else "",
            f"{result['peak_extra_bytes'] / 2**20:.0f} MiB",
            f"{result['limit_bytes'] / 2**20:.0f} MiB" if has_share else "",
            "ok" if result["within_limits"] else "TOO MUCH",
        )
    Console().print(table)


if __name__ == "__main__":
    raise SystemExit(main())
