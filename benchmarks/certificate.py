"""What does the certificate cost? ``python -m benchmarks.certificate``.

* the digest of the weights, every hundred steps, beside the steps: networks of `timm` with the method's heads and
  teacher, and the measured or assumed duration of a step;
* the digests of the images' files, beside the decoding and drawing of their canvases: drawn photographs.

The limit is 2 % of a run.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.images import write_jpegs
from benchmarks.machine import machine, write_results
from dasl_core.data.drawing import Drawer
from dasl_core.data.ingest import ingest_folder
from dasl_core.methods import build_method
from dasl_core.spec import DatasetFacts, JobSpec, resolve
from dasl_core.train.certificate import STEPS, digest_weights

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
    results = {
        "weights": {name: {"bytes": size, "seconds": s} for name, (size, s) in weights.items()},
        "files": {"draw_seconds": without, "digest_seconds": added},
        "machine": machine("torch", "timm"),
    }
    write_results(arguments.output, results)
    return 0


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
        index = ingest_folder(Path(name))
        drawer = Drawer(index, 224, 3)
        images = range(len(index))
        draw = median(lambda: [drawer.draw_valid(at) for at in images]) / len(index)
        digest = median(lambda: [index.file_digest(at) for at in images]) / len(index)
    return draw, digest


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
