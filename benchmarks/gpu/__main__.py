"""Run the measurements: ``python -m benchmarks.gpu``."""

import argparse
import importlib.util
import logging
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import __doc__ as description
from benchmarks.gpu.own import Bench
from benchmarks.gpu.parts import PARTS, Part
from benchmarks.gpu.report import page
from benchmarks.gpu.scenario import SCENARIOS, Scenario, tiny
from benchmarks.gpu.timing import Limit
from benchmarks.images import write_jpegs
from benchmarks.machine import machine, write_results
from dasl_core.data.index import DatasetIndex
from dasl_core.data.ingest import ingest_folder
from dasl_core.machine import usable_cores

RESULTS = Path(__file__).parent.parent / "results"
# The parts' limits are for so many minutes, and in proportion for others.
MINUTES = 8.5
BATCHES = 16
DISTINCT = 512
SIZE = (500, 375)

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the page, and write it with all figures; return 1 if a part failed."""
    began = time.perf_counter()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all parts together")
    parser.add_argument("--steps", type=int, default=60, help="of each training")
    parser.add_argument("--rounds", type=int, default=3, help="in which steps take turns")
    parser.add_argument("--cores", type=int, default=usable_cores(), help="threads and workers")
    parser.add_argument("--tiny", action="store_true", help="test the script with tiny networks")
    parser.add_argument(
        "--output",
        type=Path,
        default=RESULTS / f"gpu-{date.today().isoformat()}",
        help="path of the results without its ending; .json and .md are written",
    )
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    if device.type == "cpu" and not options.tiny:
        parser.error("--device: there is no GPU. Use --tiny to test the script on a CPU.")
    # As in `dasl_core.train.build.pretrain`.
    torch.backends.cudnn.benchmark = device.type == "cuda"
    if device.type == "cpu":
        torch.set_num_threads(options.cores)
    scenarios = [tiny(each) if options.tiny else each for each in SCENARIOS]
    with tempfile.TemporaryDirectory(prefix="dasl-gpu-") as name:
        # First, because it forks, and a process that has used a GPU should not.
        images, index, facts = prepared(Path(name), scenarios, options)
        result: dict[str, Any] = {
            "tiny": options.tiny,
            "seconds": 0.0,
            "images": facts,
            "scenarios": {},
            "cut": [],
            "failed": 0,
        }
        document = {
            "machine": described(device),
            "settings": {name: value for name, value in vars(options).items() if name != "output"},
            "result": result,
        }
        benches = [
            Bench(
                scenario=scenario,
                index=index,
                images=images,
                folder=Path(name),
                device=device,
                cores=options.cores,
                warmup=1 if options.tiny else 10,
                steps=2 if options.tiny else options.steps,
                rounds=1 if options.tiny else options.rounds,
                block=1 if options.tiny else 10,
            )
            for scenario in scenarios
        ]
        building = time.perf_counter()
        with benches[0].trainer():  # fills the image cache, which all parts share
            facts["seconds to a trainer, with the cache"] = round(time.perf_counter() - building, 2)
        for bench in benches:
            result["scenarios"][bench.scenario.name] = {}
            for part in PARTS:
                left = 60 * options.minutes - (time.perf_counter() - began)
                seconds = min(part.seconds * options.minutes / MINUTES, left)
                measure(part, bench, seconds, result)
                result["seconds"] = round(time.perf_counter() - began, 1)
                write(options.output, document)  # whatever happens to the next part
    print(page(document))
    return 1 if result["failed"] else 0


def prepared(
    folder: Path, scenarios: list[Scenario], options: argparse.Namespace
) -> tuple[list[Path], DatasetIndex, dict[str, float]]:
    """Write the JPEGs and make their index; return both, and how many and how long."""
    count = (3 if options.tiny else BATCHES) * max(each.batch_size for each in scenarios)
    began = time.perf_counter()
    distinct = min(count, 8 if options.tiny else DISTINCT)
    images = write_jpegs(
        folder / "images", count, *SIZE, distinct=distinct, processes=options.cores
    )
    drawn = time.perf_counter()
    index = ingest_folder(folder / "images", workers=options.cores)
    facts = {
        "count": count,
        "distinct": distinct,
        "seconds to draw": round(drawn - began, 2),
        "seconds of ingest": round(time.perf_counter() - drawn, 2),
    }
    return images, index, facts


def measure(part: Part, bench: Bench, seconds: float, result: dict[str, Any]) -> None:
    """Run a part within its time; note what it measures, and what is cut, skipped or failed."""
    name = f"{bench.scenario.name}, {part.name}"
    if part.skipped:
        result["cut"].append(f"{name}: skipped, because {part.skipped}")
        return
    limit = Limit(seconds)
    if not limit.allows():
        result["cut"].append(f"{name}: no time is left")
        return
    try:
        result["scenarios"][bench.scenario.name][part.name] = part.run(bench, limit)
    except Exception as error:  # one part that fails, for lack of memory, must not cost the others
        logger.exception("%s failed", name)
        result["failed"] += 1
        result["cut"].append(f"{name}: failed: {type(error).__name__}: {error}")
    result["cut"] += [f"{name}: {each}" for each in limit.cut]
    if bench.device.type == "cuda":
        torch.cuda.empty_cache()


def described(device: torch.device) -> dict[str, Any]:
    """Return the machine and versions."""
    packages = ("torch", "timm", "numpy", "pillow", "torchvision", "lightly")
    modules = {"pillow": "PIL"}
    found = [each for each in packages if importlib.util.find_spec(modules.get(each, each))]
    on_gpu = device.type == "cuda"
    return machine(*found) | {
        "device": torch.cuda.get_device_name(device) if on_gpu else "CPU",
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if on_gpu else None,
    }


def write(output: Path, document: dict[str, Any]) -> None:
    """Write the results so far, as JSON and as a page."""
    write_results(output.with_name(f"{output.name}.json"), document)
    output.with_name(f"{output.name}.md").write_text(page(document))


if __name__ == "__main__":
    raise SystemExit(main())
