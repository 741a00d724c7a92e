"""Run the comparison: ``python -m benchmarks.data``."""

import argparse
import importlib.util
import os
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.data import __doc__ as description
from benchmarks.data.contenders import Case, contenders
from benchmarks.data.processes import started
from benchmarks.data.sources import Files, Source, Tar, served
from benchmarks.images import write_jpegs
from benchmarks.machine import machine, write_results
from benchmarks.processor_time import use_cores

RESULTS = Path(__file__).parent.parent / "results" / "data.json"
SMALL, LARGE = (500, 375), (4000, 3000)
# Name, size of the images, pixels of a view, place.
CASES = (
    ("500x375, 64", SMALL, 64, "folder"),
    ("500x375, 128", SMALL, 128, "folder"),
    ("500x375, 224", SMALL, 224, "folder"),
    ("4000x3000, 224", LARGE, 224, "folder"),
    ("tar, 224", SMALL, 224, "tar"),
    ("s3, 224", SMALL, 224, "s3"),
)
# Processor time of a first use by that of lightly, at most, by case.
LIMITS = {"500x375, 64": 1.0, "500x375, 224": 0.7}


def main() -> int:
    """Measure all cases, print a table and write the results; return 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.data",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [name for name, *_ in CASES]
    parser.add_argument("--cases", nargs="+", choices=names, metavar="CASE", default=names)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--large-images", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="cores, threads and workers of all")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    before = machine("torch", "torchvision", "pillow", "lightly", "kornia")
    cores = use_cores(arguments.workers)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="dasl-data-") as name:
        for case in cases(Path(name), arguments):
            rows += measure(case, arguments.rounds)
            show(rows)
    ratios = first_use(rows)
    result = {
        "cores": cores,
        "limits": LIMITS,
        "first_use": ratios,
        "within_limits": all(ratio <= LIMITS[case] for case, ratio in ratios.items()),
        "litdata": "installed" if importlib.util.find_spec("litdata") else "not installed",
        "load_average_after": [round(load, 2) for load in os.getloadavg()],
        "rows": rows,
    }
    settings = {name: value for name, value in vars(arguments).items() if name != "output"}
    write_results(arguments.output, {"machine": before, "settings": settings, "result": result})
    if result["litdata"] == "not installed":
        print("litdata, lightly: skipped, because litdata is not installed")
    for name, ratio in ratios.items():
        print(
            f"first use by lightly's epoch in processor time, {name}: {ratio}, limit {LIMITS[name]:g}"
        )
    return 0 if result["within_limits"] else 1


def cases(folder: Path, arguments: argparse.Namespace) -> Iterator[Case]:
    """Write the images and yield the cases that were asked for."""
    images: dict[tuple[int, int], list[Path]] = {}
    for name, size, view_size, place in CASES:
        if name not in arguments.cases:
            continue
        count = arguments.images if size == SMALL else arguments.large_images
        root = folder / "{}x{}".format(*size)
        if size not in images:
            images[size] = write_jpegs(root, count, *size)
        scratch = folder / name.replace(", ", "-")  # the S3 server splits its folder at commas
        scratch.mkdir()
        with opened(place, images[size], scratch) as source:
            yield Case(
                name=name,
                images=root,
                source=source,
                scratch=scratch,
                view_size=view_size,
                batch_size=min(arguments.batch_size, count),
                workers=arguments.workers,
            )


@contextmanager
def opened(place: str, images: list[Path], folder: Path) -> Iterator[Source]:
    """Put the images in a place and yield it."""
    if place == "tar":
        yield Tar.write(folder / "images.tar", images)
    elif place == "s3":
        with served(folder / "s3", images) as bucket:
            yield bucket
    else:
        yield Files(images)


def measure(case: Case, rounds: int) -> list[dict[str, Any]]:
    """Run an epoch of each contender in turn, `rounds` times after one that does not count."""
    figures: dict[str, list[tuple[float, float]]] = {}
    with ExitStack() as stack:
        running = [stack.enter_context(started(name, case)) for name in contenders(case)]
        for contender in running:
            contender.epoch()  # starts workers, reads files into memory
        for round_number in range(rounds):
            for contender in running[:: -1 if round_number % 2 else 1]:
                figures.setdefault(contender.name, []).append(contender.epoch())
    rows = []
    for name, of_rounds in figures.items():
        processor, rate = zip(*of_rounds, strict=True)
        rows.append(
            {
                "case": case.name,
                "contender": name,
                "processor_ms": round(statistics.median(processor), 2),
                "images_per_second": round(statistics.median(rate), 1),
                "processor_ms_rounds": [round(value, 2) for value in processor],
                "images_per_second_rounds": [round(value, 1) for value in rate],
            }
        )
    return rows


def first_use(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return our processor time of a first use relative to lightly's, by case that was measured and has a limit."""
    times = {(row["case"], row["contender"]): row["processor_ms"] for row in rows}
    return {
        case: round(
            (times[case, "ours, ingest"] + times[case, "ours, first epoch"])
            / times[case, "lightly"],
            3,
        )
        for case in LIMITS
        if (case, "lightly") in times
    }


def show(rows: list[dict[str, Any]]) -> None:
    """Print a table of the last case."""
    case = rows[-1]["case"]
    table = Table(title=f"{case} pixels: decode and two SimCLR views")
    for heading in ("", "processor ms an image", "images/s"):
        table.add_column(heading, justify="right" if heading else "left")
    for row in rows:
        if row["case"] == case:
            table.add_row(
                row["contender"], f"{row['processor_ms']:.1f}", f"{row['images_per_second']:.0f}"
            )
    Console().print(table)


if __name__ == "__main__":
    raise SystemExit(main())
