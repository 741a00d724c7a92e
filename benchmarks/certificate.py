"""What does the certificate cost? ``python -m benchmarks.certificate``.

* the digest of the weights, every hundred steps, beside the steps: networks of `timm` with the method's heads and
  teacher, and the measured or assumed duration of a step;
* the digests of the images' files, beside the decoding and drawing of their canvases: drawn photographs;
* all of it in a run of the demo's job with DAR, with five of its twenty epochs.

The limit is 2 % of a run.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.demo import spec_of
from benchmarks.images import write_jpegs
from benchmarks.learning import run
from benchmarks.machine import machine, write_results
from dasl_core.data import index
from dasl_core.data.drawing import Drawer
from dasl_core.data.file_digests import FileDigests
from dasl_core.data.ingest import ingest_folder
from dasl_core.methods import build_method
from dasl_core.spec import DatasetFacts, JobSpec, resolve
from dasl_core.train import checkpointing, trainer
from dasl_core.train.certificate import STEPS, digest_weights
from examples.fonts import unpack_fonts

RESULTS = Path(__file__).parent / "results" / "certificate.json"
LIMIT = 0.02
# Seconds of a step that would need 2 % for the digest are compared with these, of a fast GPU.
STEP_SECONDS = {
    "resnet50/simclr": 0.25,
    "resnet18/simclr": 0.028,
    "vit_small_patch16_224/dino": 0.4,
}
REPEATS = 5


def main() -> int:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    weights = {name: measure_weights(name) for name in STEP_SECONDS}
    files = measure_files()
    table = Table(title="Digest of the weights, every hundred steps")
    for heading in ("", "MB", "s", "share of steps", "steps with 2 % from"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, (size, seconds) in weights.items():
        share = seconds / (STEPS * STEP_SECONDS[name])
        least = seconds / (STEPS * LIMIT)
        table.add_row(
            name, f"{size / 1e6:.0f}", f"{seconds:.3f}", f"{share:.2%}", f"{1e3 * least:.1f} ms"
        )
    console = Console(width=120)
    console.print(table)
    without, added = files
    console.print(
        f"Digests of files: {added / without:.2%} of drawing canvases ({1e3 * without:.2f} ms each)"
    )
    spent, whole = measure_run()
    console.print(f"The demo: {spent:.2f} of {whole:.0f} s of processor time, {spent / whole:.2%}")
    results = {
        "demo": {"certificate_seconds": spent, "run_seconds": whole},
        "weights": {name: {"bytes": size, "seconds": s} for name, (size, s) in weights.items()},
        "files": {"draw_seconds": without, "digest_seconds": added},
        "machine": machine("torch", "timm"),
    }
    write_results(arguments.output, results)
    return int(spent > LIMIT * whole)


def measure_weights(name: str) -> tuple[int, float]:
    """Return bytes and median processor time of the digest of a method's weights."""
    backbone, _, method = name.partition("/")
    spec = JobSpec.model_validate(
        {"name": "x", "dataset": "x", "method": {"name": method}, "backbone": {"name": backbone}}
    )
    resolved = resolve(spec, DatasetFacts(num_images=100_000, num_classes=None, median_size=256))
    state = build_method(resolved, None).state_dict()
    size = sum(tensor.nbytes for tensor in state.values())
    return size, median(lambda: digest_weights(state))


def measure_files() -> tuple[float, float]:
    """Return the median processor time for a canvas, and for the digest of its file."""
    with tempfile.TemporaryDirectory() as name:
        write_jpegs(Path(name), 200, 500, 375)
        photographs = ingest_folder(Path(name))
        drawer = Drawer(photographs, 224, 3)
        images = range(len(photographs))
        draw = median(lambda: [drawer.draw_valid(at) for at in images]) / len(images)
        digest = median(lambda: [photographs.file_digest(at) for at in images]) / len(images)
    return draw, digest


def measure_run() -> tuple[float, float]:
    """Return the processor time of the certificate, and of all, in a run of five epochs."""
    spent = 0.0

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal spent
            began = time.thread_time()
            try:
                return function(*arguments, **options)
            finally:
                spent += time.thread_time() - began

        return call

    spec = spec_of(0)
    spec["train"] |= {"epochs": 5, "checkpoint_every_epochs": 1}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        unpack_fonts(Path(name))
        for owner, part in (
            (trainer, "digest_weights"),
            (checkpointing.Checkpointer, "_certify"),
            (index, "_sha256"),
            (FileDigests, "put"),
        ):
            stack.enter_context(patch.object(owner, part, timed(getattr(owner, part))))
        began = time.process_time()
        run(Path(name), "fonts", spec)
        return spent, time.process_time() - began


def median(function: Callable[[], object]) -> float:
    """Return the median processor time in seconds."""
    times = []
    for _ in range(REPEATS):
        began = time.process_time()
        function()
        times.append(time.process_time() - began)
    return statistics.median(times)


if __name__ == "__main__":
    raise SystemExit(main())
