"""The process of a task under a limit of memory: `python -m workers.memory_limit ingest --run R --dataset DS`.

It runs the module of `workers` with the other arguments as its child, and returns its exit code. A child that takes more
memory than `DASL_TASK_MEMORY_GB` is killed, and run again with `--exceeded`, to report that. So no image, archive or
list makes the system end other processes of the node, such as the drivers of trainings. This process imports neither
torch nor the client, because it lives beside each task.
"""

import ctypes
import logging
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from dasl_core.machine import available_memory

logger = logging.getLogger("workers.memory_limit")

VARIABLE = "DASL_TASK_MEMORY_GB"
_LEAST_GB = 2.0
_EVERY_SECONDS = 0.5
_PR_SET_PDEATHSIG = 1
# Share of the memory that is free at the start of a task, below which half of the limit counts.
_RESERVE = 1 / 8
# Memory that the system cannot take back, unlike that of mapped files.
_KINDS = ("Pss_Anon:", "Pss_Shmem:", "SwapPss:")
_ROLLUP = "smaps_rollup"
_RESIDENT = ("RssAnon:", "RssShmem:", "VmSwap:")


class TooMuchMemory(Exception):
    """A task took more than `limit` gigabytes and was ended."""

    def __init__(self, limit: float) -> None:
        super().__init__(limit)
        self.limit = limit


def limit_gb() -> float:
    """Return the limit in gigabytes: by default half of what is available now, at least 2.

    Raises:
        ValueError: `DASL_TASK_MEMORY_GB` is not a positive number.
    """
    given = os.environ.get(VARIABLE)
    if not given:
        return max(_LEAST_GB, available_memory() / 2 / 10**9)
    with suppress(ValueError):
        if 0 < (limit := float(given)) < math.inf:
            return limit
    raise ValueError(f"{VARIABLE}: must be a number of gigabytes above 0; given {given!r}")


def exceeds(process: psutil.Process, limit: float) -> bool:
    """Whether a process and its descendants take more bytes; what they share counts once, mapped files not at all."""
    with suppress(psutil.NoSuchProcess):
        family = [process, *_descendants(process)]
        # Without shares of what others have, too, it is at least as much, and costs a hundredth of the time to read.
        return _sum(family, _resident) > limit and _sum(family, _own_bytes) > limit
    return False


def _is_scarce(reserve: float) -> bool:
    """Whether the machine has less memory left, of which Ray's monitor would take processes of trainings."""
    return available_memory() < reserve


def _sum(family: list[psutil.Process], size: Callable[[psutil.Process], int]) -> int:
    total = 0
    for each in family:
        with suppress(psutil.NoSuchProcess):
            total += size(each)
    return total


def _descendants(process: psutil.Process) -> Iterator[psutil.Process]:
    """Yield the descendants, by the lists that Linux keeps for each thread: psutil reads all processes of the machine."""
    try:
        threads = list(Path(f"/proc/{process.pid}/task").iterdir())
        ids = [int(id) for each in threads for id in (each / "children").read_text().split()]
    except OSError:  # it or a thread has ended, or the system has no such lists
        yield from process.children(recursive=True)
        return
    for id in ids:
        with suppress(psutil.NoSuchProcess):
            child = psutil.Process(id)
            yield child
            yield from _descendants(child)


def _resident(process: psutil.Process) -> int:
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text("utf-8", "replace").splitlines()
    except OSError:  # it has ended, or this is not Linux
        return int(process.memory_info().rss)
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(_RESIDENT))


def _own_bytes(process: psutil.Process) -> int:
    try:
        lines = Path(f"/proc/{process.pid}/{_ROLLUP}").read_text("ascii").splitlines()
    except OSError:  # it has ended, or this is not Linux
        return _resident(process)
    if not any(line.startswith(_KINDS[0]) for line in lines):  # Linux before 5.3
        return _resident(process)
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(_KINDS))


def _end(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        for each in (*process.children(recursive=True), process):
            with suppress(psutil.NoSuchProcess):
                each.kill()


def _ends_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def run(arguments: list[str], limit: float) -> int:
    """Run a module of `workers`; return its exit code, as a shell has it.

    Args:
        arguments: its name, and its arguments.
        limit: in gigabytes.

    Raises:
        TooMuchMemory: it was killed beyond the limit, or beyond half of it where memory is scarce.
    """
    python = [sys.executable, *(["-P"] if sys.flags.safe_path else [])]
    command = [*python, "-m", f"workers.{arguments[0]}", *arguments[1:]]
    with subprocess.Popen(command, preexec_fn=_ends_with_parent) as child:
        signal.signal(signal.SIGTERM, lambda *_: child.terminate())
        process, reserve = psutil.Process(child.pid), available_memory() * _RESERVE
        while True:
            with suppress(subprocess.TimeoutExpired):
                code = child.wait(_EVERY_SECONDS)
                # The dispatcher tells by it whether the task was ended from outside.
                return code if code >= 0 else 128 - code
            # Tasks that start together may each stay below the limit, and take all memory together.
            most = limit / 2 if _is_scarce(reserve) else limit
            if exceeds(process, most * 10**9):
                _end(process)
                raise TooMuchMemory(most)


def run_or_report(arguments: list[str]) -> int:
    """Run a task as `run` does; report to the API if it took too much, and return the exit code."""
    try:
        return run(arguments, limit_gb())
    except TooMuchMemory as ended:
        limit = f"{ended.limit:.2g}"
        logger.error("%s took more than %s GB of memory and was ended", arguments[0], limit)
    return run([*arguments, "--exceeded", limit], math.inf)


if __name__ == "__main__":
    sys.exit(run_or_report(sys.argv[1:]))
