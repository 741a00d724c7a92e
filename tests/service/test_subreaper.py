"""The subreaper ends all of its descendants when its parent or its command ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.embedded.subreaper import descendants
from tests.support.polling import until
from tests.support.processes import is_alive

# Two processes in sessions of their own, one ignoring SIGTERM, whose parent has exited.
RUNAWAYS = (
    "setsid sh -c 'trap \"\" TERM; sleep 1000 & wait' & (setsid sleep 1000 &) ; "
    "echo started > {started}; {then}"
)


class Supervised:
    """A subreaper running a command with runaway processes, and the ids of all descendants."""

    def __init__(self, folder: Path, then: str) -> None:
        started = folder / "started"
        command = ["sh", "-c", RUNAWAYS.format(started=started, then=then)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "service.embedded.subreaper", "0.2", *command],
            stdin=subprocess.PIPE,
        )
        deadline = time.monotonic() + 120
        while not started.exists() or len(descendants(self.process.pid)) < 4:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        self.descendants = descendants(self.process.pid)

    def alive(self) -> list[int]:
        return [pid for pid in self.descendants if is_alive(pid)]


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Supervised]:
    supervised = Supervised(tmp_path, then="exec sleep 1000")
    yield supervised
    for pid in supervised.alive():
        os.kill(pid, signal.SIGKILL)
    supervised.process.kill()
    supervised.process.communicate()


def test_subreaper_ends_all_processes_when_parent_dies(supervised: Supervised) -> None:
    assert supervised.process.stdin is not None
    supervised.process.stdin.close()  # The kernel does this when a parent is killed.
    assert supervised.process.wait(20) == 0
    assert supervised.alive() == []


def test_subreaper_ends_all_processes_on_sigterm(supervised: Supervised) -> None:
    supervised.process.terminate()
    assert supervised.process.wait(20) == 0
    assert supervised.alive() == []


def test_subreaper_ends_all_processes_when_command_exits(tmp_path: Path) -> None:
    supervised = Supervised(tmp_path, then="sleep 1; exit 3")
    assert supervised.process.stdin is not None
    assert supervised.process.wait(20) == 3
    assert supervised.alive() == []
    supervised.process.stdin.close()


def test_parts_of_ray_end_with_a_killed_guard(tmp_path: Path) -> None:
    started = tmp_path / "started"
    head = f"{sys.executable} -P -m workers.local_head --started {tmp_path / 'needed'}"
    # The parts are children of what becomes `workers.local_head`; it ignores no signal once it has its handler.
    parts = f"sleep 1000 & sh -c 'sleep 1000 & wait' & echo > {started}; exec {head}"
    guard = subprocess.Popen(
        [sys.executable, "-m", "service.embedded.subreaper", "0.2", "sh", "-c", parts],
        stdin=subprocess.PIPE,
    )

    def watched() -> set[int] | None:
        caught = [
            pid
            for pid in descendants(guard.pid)
            if "local_head" in Path(f"/proc/{pid}/cmdline").read_text()
            and int(Path(f"/proc/{pid}/status").read_text().split("SigCgt:\t")[1][:16], 16)
            & 1 << signal.SIGTERM - 1
        ]
        return descendants(guard.pid) if caught and started.exists() else None

    try:
        pids = until(watched, "the handler")
        assert len(pids) >= 4
        guard.kill()
        until(lambda: not [pid for pid in pids if is_alive(pid)] or None, "the end of all parts")
    finally:
        guard.kill()
        guard.communicate()
