"""Run the measurements: ``python -m benchmarks.ingest``."""

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.images import write_different_jpegs
from benchmarks.ingest import __doc__ as description
from benchmarks.ingest.slow_disk import slowed
from benchmarks.ingest.watched import Outcome, run
from benchmarks.machine import machine, write_results

RESULTS = Path(__file__).parent.parent / "results" / "ingest.json"
SIZE = (500, 375)
WORK = ("index", "prepare")
# Of an image and its canvas of 128 x 128 pixels.
IMAGE_BYTES, CANVAS_BYTES = 45_000, 3 * 128 * 128
# By so much the memory may grow while a slow disk takes what is written.
FLAT_MIB = 64


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table, and write the results; return 1 if an image is lost, or memory is not flat."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ingest",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--distinct", type=int, default=200, help="different pictures among them")
    parser.add_argument("--kill", type=int, default=0, metavar="K", help="kill K times on the way")
    parser.add_argument("--disk-limit", type=float, metavar="MB/S", help="slow the disk to this")
    parser.add_argument("--folder", type=Path, help="on whose disk to work; default: temporary")
    parser.add_argument("--shared", metavar="NOTE", help="what else ran on the machine meanwhile")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    before = machine("torch", "numpy", "pillow")
    with tempfile.TemporaryDirectory(prefix="dasl-ingest-", dir=options.folder) as name:
        folder = Path(name)
        check_room(folder, options)
        environment = slowed(folder, options.disk_limit) if options.disk_limit else {}
        began = time.perf_counter()
        images = folder / "images"
        write_different_jpegs(images, options.images, *SIZE, distinct=options.distinct)
        print(f"{options.images:,} images written in {time.perf_counter() - began:.0f} s")
        outcomes = undisturbed(images, folder / "undisturbed", environment)
        result: dict[str, Any] = {phase: each.figures for phase, each in outcomes.items()}
        if options.disk_limit:
            result["flat"] = is_flat(result)
        if options.kill:
            result["kills"] = killed(images, folder, outcomes, options.kill)
    result["within_limits"] = result.get("flat", True) and result.get("kills", {}).get(
        "equal", True
    )
    result["load_average_after"] = [round(load, 2) for load in os.getloadavg()]
    settings = {
        name: value
        for name, value in vars(options).items()
        if value is not None and name not in ("output", "folder")
    }
    write_results(options.output, {"machine": before, "settings": settings, "result": result})
    show(result, options)
    return 0 if result["within_limits"] else 1


def check_room(folder: Path, options: argparse.Namespace) -> None:
    """Check that the disk has room for the images and caches, half of which a cache leaves free.

    Raises:
        SystemExit: it has not.
    """
    caches = 2 if options.kill else 1
    needed = options.images * (IMAGE_BYTES + 2 * caches * CANVAS_BYTES)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise SystemExit(
            f"--images: {options.images:,} need {needed >> 30} GiB in {folder.parent}, where {free >> 30} are "
            "free. Choose fewer, or another --folder."
        )


def undisturbed(images: Path, work: Path, environment: dict[str, str]) -> dict[str, Outcome]:
    """Ingest and prepare a first step, each in a process of its own."""
    work.mkdir()
    outcomes = {}
    for phase in WORK:
        began = time.perf_counter()
        outcome = run(phase, images, work, environment=environment)
        assert outcome.figures is not None, "it was not killed"
        seconds = time.perf_counter() - began
        outcome.figures["megabytes_written"] = round(outcome.written / 1e6, 1)
        outcome.figures["seconds_with_start"] = round(seconds, 2)
        outcomes[phase] = outcome
        print(f"{phase}: {outcome.figures}")
    return outcomes


def is_flat(result: dict[str, Any]) -> bool:
    """Whether memory did not grow in the second half of any phase."""
    return all(result[phase]["growth_mib"] < FLAT_MIB for phase in WORK)


def kill_points(count: int) -> list[tuple[str, float]]:
    """Return phases and shares of their progress at which to kill, spread evenly over all work."""
    points = [(number + 0.5) / count * len(WORK) for number in range(count)]
    return [(WORK[int(point)], point % 1) for point in points]


def killed(images: Path, folder: Path, outcomes: dict[str, Outcome], count: int) -> dict[str, Any]:
    """Do it again, killed on the way, and compare the results with the undisturbed ones."""
    work = folder / "killed"
    work.mkdir()
    kills: list[dict[str, Any]] = []
    began = time.perf_counter()
    for phase in WORK:
        for share in [share for name, share in kill_points(count) if name == phase]:
            at = share * outcomes[phase].progress
            outcome = run(phase, images, work, kill_at=at)
            kills.append(
                {"phase": phase, "at": outcome.progress, "killed": outcome.figures is None}
            )
            print(
                f"killed in {phase} at {outcome.progress}" if kills[-1]["killed"] else "not killed"
            )
        run(phase, images, work)
    seconds = time.perf_counter() - began
    digests = [run("digest", images, each).figures for each in (folder / "undisturbed", work)]
    parts = [{key: (each or {})[key] for key in ("index", "canvases")} for each in digests]
    lost, twice = ((digests[1] or {})[key] for key in ("lost", "twice"))
    return {
        "kills": kills,
        "seconds": round(seconds, 2),
        "lost": lost,
        "twice": twice,
        "equal": parts[0] == parts[1] and not lost and not twice,
    }


def show(result: dict[str, Any], options: argparse.Namespace) -> None:
    """Print a table."""
    table = Table(title=f"{options.images:,} JPEGs of {SIZE[0]}x{SIZE[1]}")
    columns = ("seconds", "processor_seconds", "peak_mib", "peak_private_mib", "growth_mib")
    for heading in ("", *columns):
        table.add_column(heading, justify="right" if heading else "left")
    for phase in WORK:
        table.add_row(phase, *(f"{result[phase][column]:,.1f}" for column in columns))
    Console().print(table)
    if "kills" in result:
        done = sum(each["killed"] for each in result["kills"]["kills"])
        same = "equal to" if result["kills"]["equal"] else "NOT EQUAL to"
        print(
            f"killed {done} of {options.kill} times: index and canvases are {same} the undisturbed ones"
        )
    if "flat" in result:
        print(f"memory with a disk of {options.disk_limit:g} MB/s is flat: {result['flat']}")


if __name__ == "__main__":
    raise SystemExit(main())
