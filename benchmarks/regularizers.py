"""Cost of the regularizers relative to a SimCLR step: ``python -m benchmarks.regularizers``.

Two views of a global batch of 4,096 images give 8,192 embeddings of width 128. The benchmark measures
time and extra peak memory of DAR and SEC on these, forward and backward, and the time of a SimCLR step of
a ResNet-50 at 224 pixels. The step uses a batch that fits the machine and is scaled to 4,096 images. This
underestimates the contrastive loss, which grows with the square of the batch, so the shares are rather
too high than too low. Limits: 1 % of the step for DAR (all pairs, and the elementwise chain) and SEC; 3 GB for all
pairs, and 20 matrices of the embeddings' size for every other case.

With W processes the step is W times shorter, but every process computes the regularizers on the whole
batch: multiply the shares by W.

The clusters of cluster-used DAR (k = 1,000 among 100,000 rows, initialization and 3 iterations) are
computed once an epoch, not in the step, and have no limit here.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.machine import machine, write_results
from benchmarks.memory import in_fresh_process, peak_bytes, synchronize
from dasl_core.clustering import cluster
from dasl_core.methods.simclr import nt_xent
from dasl_core.models.heads import projection_head
from dasl_core.regularizers import (
    SphericalEmbeddingConstraint,
    difference_alignment,
    gradient_shares,
)

Step = Callable[[], object]

GLOBAL_BATCH = 4096
VIEWS = 2
WIDTH = 128
IMAGE_SIZE = 224
LIMIT_SHARE = 0.01
LIMIT_MATRICES = 20
LIMIT_ALL_PAIRS = 3 << 30
REPEATS, FEWEST_REPEATS = 9, 5
ENOUGH_SECONDS = 10.0
BANK_ROWS, CLUSTERS, ITERATIONS = 100_000, 1000, 3
RESULTS = Path(__file__).parent / "results"


def main() -> int:
    """Run, print a table and write the results; return 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument(
        "--batch",
        type=int,
        default=None,
        help="images in the measured step (default: 8; on a GPU 256)",
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

    step = in_fresh_process("benchmarks.regularizers", "step", arguments, return_memory=False)
    # The fastest: a step slowed by other processes would make the shares look small.
    whole = step["fastest_seconds"] * GLOBAL_BATCH / batch
    about_step = {"batch": batch, "image_size": IMAGE_SIZE, **step, "seconds_at_4096": whole}
    matrices = LIMIT_MATRICES * VIEWS * GLOBAL_BATCH * WIDTH * 4
    results = []
    for name in CASES:
        figures = in_fresh_process("benchmarks.regularizers", name, arguments) | {"name": name}
        within = True
        if name.startswith("shares"):
            figures["share_of_step"] = figures["median_seconds"] / 10 / whole
            within = figures["share_of_step"] < LIMIT_SHARE
        elif name != "clusters":
            figures["share_of_step"] = figures["median_seconds"] / whole
            figures["limit_bytes"] = LIMIT_ALL_PAIRS if name == "dar" else matrices
            within = figures["peak_extra_bytes"] < figures["limit_bytes"]
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
    write_results(output, {"machine": about, "step": about_step, "results": results})
    return 0 if all(result["within_limits"] for result in results) else 1


def embeddings_of(images: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return random embeddings of two views, and the indices of their images."""
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


def all_pairs_case(images: int, device: torch.device) -> Step:
    return alignment_case(images, device)


def small_all_pairs_case(images: int, device: torch.device) -> Step:
    """Compute all pairs of 512 embeddings, those of the default batch."""
    return alignment_case(min(images, 256), device)


def small_chain_case(images: int, device: torch.device) -> Step:
    return alignment_case(min(images, 256), device, estimator="chain")


def distance_chain_case(images: int, device: torch.device) -> Step:
    return alignment_case(images, device, estimator="chain")


def dar_case(images: int, device: torch.device) -> Step:
    return alignment_case(images, device, difference="abs")


def unbiased_case(images: int, device: torch.device) -> Step:
    return alignment_case(images, device, difference="abs", estimator="unbiased")


def l2_case(images: int, device: torch.device) -> Step:
    return alignment_case(images, device, difference="abs", norm="l2")


def few_labels_case(images: int, device: torch.device) -> Step:
    """Compute the chain when many neighbors in a random order share their label."""
    embeddings, _ = embeddings_of(images, device)
    labels = torch.randint(20, (images,), generator=torch.Generator().manual_seed(1)).repeat(VIEWS)

    def step() -> None:
        embeddings.grad = None
        generator = torch.Generator().manual_seed(0)
        difference_alignment(embeddings, labels, difference="abs", generator=generator).backward()

    return step


def sec_case(images: int, device: torch.device) -> Step:
    embeddings, _ = embeddings_of(images, device)
    constraint = SphericalEmbeddingConstraint().to(device)

    def step() -> None:
        embeddings.grad = None
        constraint(embeddings).backward()

    return step


def shares_case(images: int, device: torch.device) -> Step:
    """Measure the shares of DAR and SEC at the features of a ResNet-50, whose forward is done."""
    torch.manual_seed(0)
    features = torch.randn(VIEWS * images, 2048, device=device, requires_grad=True)
    head = projection_head(2048, 2048, WIDTH).to(device)
    embeddings = head(features)
    loss = nt_xent(embeddings.unflatten(0, (VIEWS, images)), 0.2)
    terms = {
        "dar": difference_alignment(embeddings, torch.arange(images).repeat(VIEWS)),
        "sec": SphericalEmbeddingConstraint().to(device)(embeddings),
    }
    return lambda: gradient_shares(loss, terms, [features])


def clusters_case(images: int, device: torch.device) -> Step:
    rows = BANK_ROWS if images == GLOBAL_BATCH else 100
    bank = torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(0)).to(device)
    return lambda: cluster(bank, min(CLUSTERS, rows), max_iterations=ITERATIONS)


CASES: dict[str, Callable[[int, torch.device], Step]] = {
    "dar": all_pairs_case,
    "dar, 512 embeddings": small_all_pairs_case,
    "dar, chain": distance_chain_case,
    "dar, chain, 512 embeddings": small_chain_case,
    "dar, elementwise": dar_case,
    "dar, elementwise, 20 labels": few_labels_case,
    "dar, elementwise, unbiased": unbiased_case,
    "dar, elementwise, l2": l2_case,
    "sec": sec_case,
    "shares, every tenth step": shares_case,
    "clusters": clusters_case,
}
LIMITED = ("dar", "dar, elementwise", "dar, elementwise, 20 labels", "sec")


def network_step(batch: int, device: torch.device) -> Step:
    """Return a step of SimCLR on fixed views: forward, NT-Xent, backward, update."""
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
    """Measure one case, in a fresh process."""
    if name == "step":
        step, extra = network_step(batch, device), None
        step()
    else:
        CASES[name](64, device)()  # start torch's threads and load its code
        step = CASES[name](GLOBAL_BATCH, device)
        before = peak_bytes(device, reset=True)
        step()
        extra = peak_bytes(device) - before
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
            f"{result['limit_bytes'] / 2**20:.0f} MiB" if "limit_bytes" in result else "",
            "ok" if result["within_limits"] else "TOO MUCH",
        )
    Console().print(table)


if __name__ == "__main__":
    raise SystemExit(main())
