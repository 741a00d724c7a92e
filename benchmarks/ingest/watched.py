"""A process that is measured, and killed where it should be."""

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

_EVERY_SECONDS = 0.1


@dataclass
class Memory:
    """Resident memory of a process and its descendants, over time.

    Attributes:
        private: of each sample, in bytes: without what is shared, such as pages of mapped files, which the
            kernel takes back when it needs them.
        peak: the largest, with such pages.
        until: number of samples of which the growth counts; None: all.
    """

    private: list[int] = field(default_factory=list)
    peak: int = 0
    until: int | None = None

    def sample(self, pid: int) -> None:
        """Add a sample."""
        whole = private = 0
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            for each in (process, *process.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    memory = each.memory_info()
                    whole, private = whole + memory.rss, private + memory.rss - memory.shared
        if whole:
            self.peak = max(self.peak, whole)
            self.private.append(private)

    def figures(self) -> dict[str, Any]:
        """Return peaks and growth, in MiB."""
        return {
            "peak_mib": self.peak >> 20,
            "peak_private_mib": max(self.private, default=0) >> 20,
            "growth_mib": round(growth(self.private[: self.until]) / (1 << 20), 1),
        }


def growth(samples: list[int]) -> float:
    """Return by how much the peak of the last quarter exceeds that of the second quarter.

    The first quarter has imports and buffers that fill once. Memory that holds what a slow disk has not yet
    taken grows until the end.
    """
    quarter = len(samples) // 4
    if not quarter:
        return 0.0
    return float(max(samples[-quarter:]) - max(samples[quarter : 2 * quarter]))


@dataclass
class Outcome:
    """How a process ended.

    Attributes:
        figures: that it printed, and its memory; None if it was killed.
        progress: the last that it printed.
        written: bytes that it wrote, as far as the kernel counted them at the last sample.
    """

    figures: dict[str, Any] | None
    progress: int
    written: int


def run(
    phase: str,
    images: Path,
    work: Path,
    *,
    kill_at: float | None = None,
    environment: dict[str, str] | None = None,
) -> Outcome:
    """Run a phase in a process of its own, and measure it.

    Args:
        kill_at: progress at which it gets SIGKILL, with all of its descendants.
        environment: variables that are set for it.

    Raises:
        RuntimeError: it failed.
    """
    command = [sys.executable, "-m", "benchmarks.ingest.phases", phase, str(images), str(work)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | (environment or {}),
        start_new_session=True,
    )
    memory, written, ended = Memory(), [0], threading.Event()

    def watch() -> None:
        while not ended.wait(_EVERY_SECONDS):
            memory.sample(process.pid)
            with suppress(psutil.Error):
                written[0] = psutil.Process(process.pid).io_counters().write_chars

    watcher = threading.Thread(target=watch)
    watcher.start()
    progress, figures, killed = 0, None, False
    assert process.stdout is not None, "it is a pipe"
    try:
        for line in process.stdout:
            told = json.loads(line)
            figures = told.get("figures", figures)
            progress = told.get("progress", progress)
            if "filled" in told:
                memory.until = len(memory.private)
            if kill_at is not None and not killed and "progress" in told and progress >= kill_at:
                os.killpg(process.pid, signal.SIGKILL)
                killed = True
        process.wait()
    finally:
        ended.set()
        watcher.join()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if killed:
        return Outcome(None, progress, written[0])
    if process.returncode or figures is None:
        raise RuntimeError(f"phase {phase} ended with status {process.returncode}")
    return Outcome(figures | memory.figures(), progress, written[0])
