"""The guard ends everything below it, however its parent or its command end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.embedded.subreaper import descendants

# Two processes that left their session, one of which ignores SIGTERM; their parent is gone.
RUNAWAYS = (
    "setsid sh -c 'trap \"\" TERM; sleep 1000 & wait' & (setsid sleep 1000 &) ; "
    "echo started > {started}; {then}"
)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Guarded:
    """A guard over a command with runaways, and all processes that were found below it."""

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
        self.below = descendants(self.process.pid)

    def left(self) -> list[int]:
        return [pid for pid in self.below if lives(pid)]


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    guarded = Guarded(tmp_path, then="exec sleep 1000")
    yield guarded
    for pid in guarded.left():
        os.kill(pid, signal.SIGKILL)
    guarded.process.kill()
    guarded.process.communicate()


def test_subreaper_ends_all_processes_when_parent_dies(guarded: Guarded) -> None:
    assert guarded.process.stdin is not None
    guarded.process.stdin.close()  # As the kernel does for a parent that was killed.
    assert guarded.process.wait(20) == 0
    assert guarded.left() == []


def test_subreaper_ends_all_processes_on_sigterm(guarded: Guarded) -> None:
    guarded.process.terminate()
    assert guarded.process.wait(20) == 0
    assert guarded.left() == []


def test_subreaper_ends_all_processes_when_command_exits(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path, then="sleep 1; exit 3")
    assert guarded.process.stdin is not None
    assert guarded.process.wait(20) == 3
    assert guarded.left() == []
    guarded.process.stdin.close()
