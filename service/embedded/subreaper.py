"""Run a command so that none of its processes outlives the parent process, even after kill -9.

    python -m service.embedded.subreaper GRACE COMMAND...

The guard is a small process between `dasl serve` and Ray. It stops the command on SIGTERM, or when its
standard input closes, which happens whenever the parent dies. As the subreaper of all orphans below it,
it also reaches processes that left their group or session, such as Ray's workers and drivers. It imports
only the standard library, to start fast and stay small.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def descendants(ancestor: int) -> set[int]:
    """Return the ids of all descendants of a process, from /proc; empty on systems without it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name in parentheses may contain anything; the parent's id is the 2nd field after it.
            parent = int(entry.read_text(errors="replace").rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue  # it ended after the listing
        children.setdefault(parent, []).append(int(entry.parent.name))
    descendant_ids: set[int] = set()
    generation = [ancestor]
    while generation:
        generation = [child for parent in generation for child in children.get(parent, [])]
        descendant_ids.update(generation)
    return descendant_ids


def adopt_orphans() -> None:
    """Become the parent of all descendants that lose theirs (Linux)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def guard(command: list[str], grace: float) -> int:
    """Run a command until it ends, or until standard input closes.

    Args:
        grace: seconds between SIGTERM and SIGKILL.

    Returns:
        The command's exit status; 0 if the guard stopped it.
    """
    adopt_orphans()
    # Signals only wake the loop through a pipe; SIGCHLD means that a child ended.
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    stop_signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: stop_signals.append(number))
    signal.signal(signal.SIGCHLD, lambda *_: None)

    # If the guard itself is killed, the kernel sends the command SIGTERM: `workers.local_head` then ends its processes.
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        preexec_fn=lambda: _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
    )
    status: int | None = None
    while status is None and not stop_signals:
        ready, _, _ = select.select([0, wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
        if 0 in ready and not os.read(0, 4096):
            stop_signals.append(signal.SIGTERM)
        status = _reap(process.pid)

    if status is None:
        process.terminate()
        deadline = time.monotonic() + grace
        while status is None and time.monotonic() < deadline:
            select.select([wake], [], [], 0.1)
            status = _reap(process.pid)
        status = 0
    # Kill the remaining processes. Orphans become children of this process, so none is missed.
    while remaining := descendants(os.getpid()):
        for pid in remaining:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)
        _reap(process.pid)
    return status


def _reap(main: int) -> int | None:
    """Reap all ended children; return the exit status of the main process if it is one of them."""
    status = None
    while True:
        try:
            pid, code = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if pid == 0:
            return status
        if pid == main:
            status = os.waitstatus_to_exitcode(code)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(abs(guard(sys.argv[2:], float(sys.argv[1]))) or 0)
