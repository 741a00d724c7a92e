"""What an idle `dasl serve` takes, and how soon a job starts in it: ``python -m benchmarks.idle``.

Processes, memory (PSS, all together) and the share of a core over some seconds: without Ray, as it is after the start and
after an hour without work, and with Ray, after a job, with its standby processes and without them. The seconds from a
submission to the first training step are those of a job for which Ray is started, and of the next one. How often the
threads wake up does not depend on the machine, as the share of a core does: on some virtual ones, a wake after a quarter
of a second takes ten times the processor time of one that follows at once.
"""

import argparse
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine, write_results
from benchmarks.startup import (
    DATASET,
    PATIENCE_SECONDS,
    Service,
    through_service,
    until_idle,
    until_ready,
)
from service.client import Client
from service.embedded.subreaper import descendants
from tests.support.polling import until
from tests.support.running_service import serving, write_images

RESULTS = Path(__file__).parent / "results" / "idle.json"
READY_LIMIT_SECONDS = 3.0
OFF_LIMIT = {"megabytes": 300.0, "percent_of_a_core": 1.0}
RAY_LIMIT = {"megabytes": 900.0, "percent_of_a_core": 3.0}
SETTLE_SECONDS = 10.0


def main() -> int:
    """Run, print a table and write the results; return 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each measurement")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    before, seconds = machine("ray"), arguments.seconds
    with tempfile.TemporaryDirectory(prefix="dasl-bench-") as folder:
        home = Path(folder)
        write_images(home / "images", 40)
        with serving(home, home / "d") as (_, url, token), Client(url, token) as client:
            client.datasets.add(home / "images", DATASET).wait(timeout=PATIENCE_SECONDS)
        without = measure(home, seconds, standby_ranks=0)
        standby = measure(home, seconds, standby_ranks=1)
    result = {"without_standby": without, "with_standby": standby}
    show(result)
    within = (
        without["ready_seconds"] <= READY_LIMIT_SECONDS
        and all(without["off"][name] <= most for name, most in OFF_LIMIT.items())
        and all(without["ray"][name] <= most for name, most in RAY_LIMIT.items())
    )
    write_results(arguments.output, {"machine": before, "result": result, "within_limits": within})
    return 0 if within else 1


def measure(home: Path, seconds: float, *, standby_ranks: int) -> dict[str, Any]:
    """Measure a service that is started on a home with a data set."""
    output, began = home / "serve.out", time.monotonic()
    output.unlink()
    running = serving(
        home, home / "d", DASL_HEARTBEAT_SECONDS="2", DASL_STANDBY_RANKS=str(standby_ranks)
    )
    with running as (pid, url, token), Client(url, token) as client:
        until(lambda: "Ready" in output.read_text() or None, "Ready", pause=0.02)
        ready = time.monotonic() - began
        on = Service(pid, client, home, home / "images", home / "unused")
        time.sleep(SETTLE_SECONDS)
        off = use(pid, seconds)
        first, _ = through_service(on, 1)
        if standby_ranks:
            until_ready(on)
        until_idle(pid)
        time.sleep(SETTLE_SECONDS)
        ray = use(pid, seconds)
        next_one, _ = through_service(on, 1)
    return {
        "ready_seconds": round(ready, 2),
        "off": off,
        "ray": ray,
        "first_step_seconds": {"off": round(first, 2), "ray": round(next_one, 2)},
    }


def use(pid: int, seconds: float) -> dict[str, float]:
    """Return the number of processes of a service, their memory and their share of a core over some seconds."""
    processes = [psutil.Process(each) for each in (pid, *descendants(pid))]
    before = [sum(each.cpu_times()[:2]) for each in processes]
    slept = wakes([each.pid for each in processes])
    time.sleep(seconds)
    woken = wakes([each.pid for each in processes]) - slept
    used = sum(sum(each.cpu_times()[:2]) for each in processes) - sum(before)
    memory = sum(each.memory_full_info().pss for each in processes)
    return {
        "processes": len(processes),
        "megabytes": round(memory / 1e6),
        "percent_of_a_core": round(100 * used / seconds, 2),
        "wakes_per_second": round(woken / seconds),
    }


def wakes(pids: list[int]) -> int:
    """Return how often the threads of processes have gone to sleep by themselves since they were started."""
    total = 0
    for pid in pids:
        for status in Path(f"/proc/{pid}/task").glob("*/status"):
            with suppress(FileNotFoundError):  # the thread has ended
                total += int(
                    status.read_text().partition("\nvoluntary_ctxt_switches:")[2].split()[0]
                )
    return total


def show(result: dict[str, Any]) -> None:
    """Print a table."""
    table = Table(title="An idle `dasl serve`")
    for heading in ("", "processes", "MB", "% of a core", "wakes/s", "s to first step"):
        table.add_column(heading, justify="left" if heading == "" else "right")
    for name, found in result.items():
        table.add_section()
        table.add_row(name.replace("_", " "))
        for state, label in (("off", "Ray off"), ("ray", "Ray idle")):
            figures = [str(each) for each in found[state].values()]
            table.add_row(label, *figures, str(found["first_step_seconds"][state]))
    Console().print(table)
    print(f"Ready after {result['without_standby']['ready_seconds']} s")


if __name__ == "__main__":
    raise SystemExit(main())
